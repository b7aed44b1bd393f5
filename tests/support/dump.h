#pragma once

#include <string>

#include "call.h"

namespace heed_test {

// The same problem as a folder can say it: packed tensors, queries varlen only where they have lengths; keys where they
// are, or contiguous where a folder would take their storage for another max_kv_len.
CallOptions as_in_folder(const Attention &a, const CallOptions &options);

// Writes a case, as_in_folder, so that `heed run` and `heed check` read it.
void dump_case(const std::string &folder, const Attention &a, const CallOptions &options);

}  // namespace heed_test
