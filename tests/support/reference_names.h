// Tests call what the reference has by its plain names.
#pragma once

namespace heed_reference {}

namespace heed_test {
using namespace heed_reference;
}  // namespace heed_test
