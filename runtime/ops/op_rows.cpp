#include "ops/op_rows.h"

#include <atomic>

#include "cpu.h"
#include "status.h"

namespace heed {
namespace {

std::atomic<Isa> highest_isa{Isa::avx512};

const char *op_name(Op op) {
    switch (op) {
    case Op::rope:
        return "rope";
    case Op::kv_append:
        return "kv_append";
    case Op::merge_states:
        return "merge_states";
    case Op::dropout_mask:
        return "dropout_mask";
    }
    return "?";
}

}  // namespace

heed_status find_op_row(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **row) {
    *row = nullptr;
    const OpKernel *lacking = nullptr;
    for (int32_t i = 0; i < heed_kernel_table.num_ops; i++) {
        const OpKernel &candidate = heed_kernel_table.ops[i];
        if (candidate.op != op || candidate.dtype != dtype || candidate.kv_dtype != kv_dtype) continue;
        if (candidate.isa > highest_isa.load(std::memory_order_relaxed)) continue;
        if (!cpu_supports(candidate.isa)) {
            lacking = &candidate;
        } else if (*row == nullptr || candidate.isa > (*row)->isa) {
            *row = &candidate;
        }
    }
    if (*row != nullptr) return HEED_OK;
    if (lacking != nullptr) {
        return fail(HEED_UNSUPPORTED, "this CPU cannot run %s, which needs %s", lacking->name,
                    isa_requirements(lacking->isa));
    }
    return fail(HEED_UNSUPPORTED, "this program's kernel library has no row of %s for %s, %s", op_name(op),
                dtype_name(dtype), dtype_name(kv_dtype));
}

void limit_op_isa(Isa isa) { highest_isa.store(isa, std::memory_order_relaxed); }

}  // namespace heed
