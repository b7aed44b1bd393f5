// A case and its results in the terms of the reference: dense, each sequence by itself, as float.
#pragma once

#include "runtime/reference/attention.h"
#include "runtime/reference/case_file.h"

namespace heed_reference {

// Data of a case that heed_execute accepted, as its types hold it. Axes that no sequence fills are shortened, unless
// dropout counts them.
Attention attention_of(const Case &c);

// Results as make_out and make_lse shape them, indexed as those of `a`; 0 in rows that do not exist.
std::vector<float> out_rows(const Case &c, const Attention &a, const Array &out);
std::vector<float> lse_rows(const Case &c, const Attention &a, const Array &lse);

}  // namespace heed_reference
