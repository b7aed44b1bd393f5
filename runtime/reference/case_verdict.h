// The results of a case against the fp64 reference.
#pragma once

#include "runtime/reference/case_file.h"
#include "runtime/reference/tolerance.h"

namespace heed_reference {

struct CaseVerdict {
    Verdict verdict;
    double worst_error = 0;  // of `out`, infinite where only one side is NaN
    double worst_bound = 0;  // of that element
};

// `out` and `lse` as make_out and make_lse shape them, of a case that this kernel computed.
CaseVerdict verdict_of_case(const Case &c, const std::string &kernel, const Array &out, const Array &lse);

}  // namespace heed_reference
