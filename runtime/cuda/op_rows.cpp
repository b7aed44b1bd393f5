#include "cuda/op_rows.h"

#include <climits>

#include "kernel_registry.h"
#include "ops/op_rows.h"
#include "status.h"

namespace heed {
namespace {

bool runs_on_chip(const OpKernel &row, int capability) {
    return device_of(row.isa) == HEED_CUDA && row.isa <= highest_op_isa(HEED_CUDA) &&
           required_capability(row.isa) <= capability;
}

}  // namespace

int32_t required_capability(Isa isa) { return isa == Isa::sm80 ? 80 : 75; }

heed_status best_cuda_op_row(Op op, heed_dtype dtype, heed_dtype kv_dtype, int capability, const OpKernel **row) {
    *row = nullptr;
    if (const heed_status status = check_kernel_library()) return status;
    for (int32_t i = 0; i < heed_kernel_table.num_ops; i++) {
        const OpKernel &r = heed_kernel_table.ops[i];
        if (r.op != op || r.dtype != dtype || r.kv_dtype != kv_dtype || !runs_on_chip(r, capability)) continue;
        if (*row != nullptr && r.isa < (*row)->isa) continue;
        *row = &r;
    }
    if (*row != nullptr) return HEED_OK;
    return fail(HEED_NO_DEVICE,
                "device is HEED_CUDA; this program's kernel library has no CUDA row of %s for %s, %s that serves the "
                "chip and these tensors",
                op_name(op), dtype_name(dtype), dtype_name(kv_dtype));
}

heed_status find_cuda_op_row(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **row) {
    return best_cuda_op_row(op, dtype, kv_dtype, INT_MAX, row);
}

const OpKernel *find_backward_cores(Op op, heed_dtype dtype, int32_t head_dim, int capability) {
    const OpKernel *best = nullptr;
    for (int32_t i = 0; i < heed_kernel_table.num_ops; i++) {
        const OpKernel &row = heed_kernel_table.ops[i];
        if (row.op != op || row.dtype != dtype || row.columns < head_dim || !runs_on_chip(row, capability)) continue;
        if (best == nullptr || row.columns < best->columns) best = &row;
    }
    return best;
}

}  // namespace heed
