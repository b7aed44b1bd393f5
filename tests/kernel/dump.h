#pragma once

#include <string>

#include "call.h"

namespace heed_test {

// Writes a case as a folder that `heed run` and `heed check` read. Layouts and storages are not kept: all tensors are
// bshd, keys contiguous, queries varlen only where they have lengths.
void dump_case(const std::string &folder, const Attention &a, const CallOptions &options);

}  // namespace heed_test
