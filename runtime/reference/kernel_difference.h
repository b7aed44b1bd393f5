// Two kernels for the same problems, of other schedules or other tiles.
#pragma once

#include <string>

#include "heed/heed.h"

namespace heed_reference {

// Runs random problems of the kernel on it and on `other`, both of the CPU: "", or where they differ by more than
// roundings may. Throws heed::Error where one does not run.
std::string kernel_difference(const heed_kernel_info &kernel, const std::string &other, int num_calls = 12);

}  // namespace heed_reference
