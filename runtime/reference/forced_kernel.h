// Plans on one kernel.
#pragma once

#include <cstdlib>
#include <string>

namespace heed_reference {

// While it lives, plans use the named kernel or fail; "" leaves the choice to the plan.
class ForcedKernel {
public:
    explicit ForcedKernel(const std::string &name) {
        if (!name.empty()) setenv("HEED_FORCE_KERNEL", name.c_str(), 1);
    }
    ~ForcedKernel() { unsetenv("HEED_FORCE_KERNEL"); }
    ForcedKernel(const ForcedKernel &) = delete;
    ForcedKernel &operator=(const ForcedKernel &) = delete;
};

}  // namespace heed_reference
