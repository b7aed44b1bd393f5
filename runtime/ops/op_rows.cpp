#include "ops/op_rows.h"

#include <algorithm>
#include <atomic>
#include <climits>

#include "cpu.h"
#include "kernel_registry.h"
#include "ops/linear.h"
#include "status.h"

namespace heed {
namespace {

std::atomic<Isa> highest_isa{highest_cpu_isa}, highest_cuda{highest_cuda_isa};

}  // namespace

heed_status find_op_row(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **row) {
    *row = nullptr;
    if (const heed_status status = check_kernel_library()) return status;
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

namespace {

bool runs_on_chip(const OpKernel &row, int capability) {
    return device_of(row.isa) == HEED_CUDA && row.isa <= highest_cuda.load(std::memory_order_relaxed) &&
           required_capability(row.isa) <= capability;
}

}  // namespace

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

heed_status find_linear_rows(heed_dtype dtype, heed_linear_weights *w) {
    const OpKernel *best = nullptr;
    if (const heed_status status = find_op_row(Op::linear, dtype, dtype, &best)) return status;
    w->columns = best->columns;
    w->num_tiles = 0;
    for (int32_t i = 0; i < heed_kernel_table.num_ops; i++) {
        const OpKernel &tile = heed_kernel_table.ops[i];
        if (tile.op != Op::linear || tile.dtype != dtype || tile.isa != best->isa) continue;
        for (int32_t j = 0; j < heed_kernel_table.num_ops && w->num_tiles < w->max_tiles; j++) {
            const OpKernel &rows = heed_kernel_table.ops[j];
            if (rows.op != Op::linear_rows || rows.dtype != dtype || rows.isa != tile.isa) continue;
            if (rows.rows != tile.rows) continue;
            w->tiles[w->num_tiles] = &tile;
            w->row_tiles[w->num_tiles++] = &rows;
        }
    }
    const auto more_rows = [](const OpKernel *a, const OpKernel *b) { return a->rows > b->rows; };
    std::sort(w->tiles, w->tiles + w->num_tiles, more_rows);
    std::sort(w->row_tiles, w->row_tiles + w->num_tiles, more_rows);
    if (w->num_tiles > 0) return HEED_OK;
    return fail(HEED_UNSUPPORTED, "this program's kernel library has no row of linear_rows for %s", dtype_name(dtype));
}

void limit_op_isa(Isa isa) {
    (device_of(isa) == HEED_CUDA ? highest_cuda : highest_isa).store(isa, std::memory_order_relaxed);
}

}  // namespace heed
