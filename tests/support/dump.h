#pragma once

#include <filesystem>

#include "tests/support/call.h"

namespace heed_test {

// The same problem as a case file can say it: packed tensors, queries varlen only where they have lengths; keys where
// they are, or contiguous where a case would take their storage for another max_kv_len.
CallOptions as_in_case(const Attention &a, const CallOptions &options);

// Writes a case, as_in_case, so that `heed run` and `heed check` read it, and the folders that it needs.
void dump_case(const std::filesystem::path &path, const Attention &a, const CallOptions &options);

}  // namespace heed_test
