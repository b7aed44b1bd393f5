// A case out of a problem of the reference.
#pragma once

#include "runtime/reference/attention.h"
#include "runtime/reference/case_file.h"

namespace heed_reference {

// Dense queries and contiguous keys; or keys in pages of page_size, which divides a.kv_len. `a` has no lengths of
// queries, and where there are pages lengths of keys.
Case make_case(const Attention &a, int32_t page_size = 0);

}  // namespace heed_reference
