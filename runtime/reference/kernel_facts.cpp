#include "runtime/reference/kernel_facts.h"

#include <algorithm>
#include <vector>

#include "heed/heed.hpp"

namespace heed_reference {
namespace {

bool has_bf16_dots(heed_isa isa) { return isa == HEED_AVX512_BF16 || isa == HEED_AMX; }

}  // namespace

bool rounds_weights(const heed_kernel_info &kernel) {
    return has_bf16_dots(kernel.isa) || (is_cuda(kernel.isa) && kernel.dtype != HEED_F32);
}

bool rounds_weights(const std::string &kernel) {
    const std::vector<heed_kernel_info> kernels = heed::kernels();
    return std::any_of(kernels.begin(), kernels.end(),
                       [&](const heed_kernel_info &info) { return kernel == info.name && rounds_weights(info); });
}

double most_flushed(const heed_kernel_info &kernel, int32_t kv_len) {
    return has_bf16_dots(kernel.isa) ? 0x1p-126 * (kv_len + 1) : 0;
}

}  // namespace heed_reference
