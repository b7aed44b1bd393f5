#pragma once

#include <string>

#include "tests/support/call.h"

namespace heed_test {

// A case in one line: what it computes, where its tensors are, how it is called. Settings at their defaults are left
// out.
std::string describe(const Attention &a, const CallOptions &options);

}  // namespace heed_test
