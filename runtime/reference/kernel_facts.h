// What tolerances ask of a kernel.
#pragma once

#include <string>

#include "heed/heed.h"

namespace heed_reference {

inline bool is_cuda(heed_isa isa) { return isa >= HEED_SM75 && isa <= HEED_SM90; }

// Whether the kernel rounds weights to the I/O type before they meet v.
bool rounds_weights(const heed_kernel_info &kernel);
// The same for the kernel with this name.
bool rounds_weights(const std::string &kernel);

// How much a result may lack where the kernel takes subnormal numbers for 0: dot products of bf16 do, operands and
// sums, of each visible key.
double most_flushed(const heed_kernel_info &kernel, int32_t kv_len);

}  // namespace heed_reference
