#include "runtime/cuda/op_kernels.h"

#include <climits>
#include <cstring>

#include "runtime/kernel_registry.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/status.h"

namespace heed {
namespace {

bool runs_on_chip(const OpKernel &kernel, int capability) {
    return kernel.target.device() == HEED_CUDA && kernel.target <= highest_op_target(HEED_CUDA) &&
           serves_chip(kernel.target.capability(), capability);
}

}  // namespace

int32_t required_capability(Capability capability) {
    return capability == Capability::sm90 ? 90 : capability == Capability::sm80 ? 80 : 75;
}

bool serves_chip(Capability own, int capability) {
    return own == Capability::sm90 ? capability == 90 : capability >= required_capability(own);
}

heed_status best_cuda_op_kernel(Op op, heed_dtype dtype, heed_dtype kv_dtype, int capability, const OpKernel **kernel,
                                const char *score_mod) {
    *kernel = nullptr;
    if (const heed_status status = check_kernel_library()) return status;
    for (int32_t i = 0; i < heed_kernel_table.num_ops; i++) {
        const OpKernel &r = heed_kernel_table.ops[i];
        if (r.op != op || r.dtype != dtype || r.kv_dtype != kv_dtype || !runs_on_chip(r, capability)) continue;
        if (std::strcmp(r.score_mod, score_mod) != 0) continue;
        if (*kernel != nullptr && r.target < (*kernel)->target) continue;
        *kernel = &r;
    }
    if (*kernel != nullptr) return HEED_OK;
    if (score_mod[0] != '\0') {
        return fail(
            HEED_UNSUPPORTED,
            "this program's kernel library has no CUDA kernel of %s for %s with score_mod \"%s\" that serves the "
            "chip",
            op_name(op), dtype_name(dtype), score_mod);
    }
    return fail(
        HEED_NO_DEVICE,
        "device is HEED_CUDA; this program's kernel library has no CUDA kernel of %s for %s, %s that serves the "
        "chip and these tensors",
        op_name(op), dtype_name(dtype), dtype_name(kv_dtype));
}

heed_status find_cuda_op_kernel(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **kernel) {
    return best_cuda_op_kernel(op, dtype, kv_dtype, INT_MAX, kernel);
}

const OpKernel *find_backward_cores(Op op, heed_dtype dtype, int32_t head_dim, int capability, const char *score_mod) {
    const OpKernel *best = nullptr;
    for (int32_t i = 0; i < heed_kernel_table.num_ops; i++) {
        const OpKernel &kernel = heed_kernel_table.ops[i];
        if (kernel.op != op || kernel.dtype != dtype || kernel.columns < head_dim ||
            !runs_on_chip(kernel, capability) || std::strcmp(kernel.score_mod, score_mod) != 0) {
            continue;
        }
        if (best == nullptr || kernel.columns < best->columns) best = &kernel;
    }
    return best;
}

}  // namespace heed
