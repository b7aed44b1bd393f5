// A case as a call of the API: its arguments and the arrays of its results.
#pragma once

#include "runtime/reference/case_file.h"

namespace heed_reference {

std::vector<int64_t> out_shape(const Case &c);

// Results in the shape and type that they have in a file; the content is NaN.
Array make_out(const Case &c);
Array make_lse(const Case &c);

// Arguments that point into `c`, `out` and `lse`, without a workspace.
heed_args make_args(const Case &c, Array &out, Array &lse);

}  // namespace heed_reference
