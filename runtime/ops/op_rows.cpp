#include "ops/op_rows.h"

#include <algorithm>
#include <atomic>

#include "cpu.h"
#include "kernel_registry.h"
#include "ops/linear.h"
#include "status.h"

namespace heed {
namespace {

std::atomic<Isa> highest[] = {highest_cpu_isa, highest_cuda_isa};  // by device

}  // namespace

heed_status find_op_row(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **row) {
    *row = nullptr;
    if (const heed_status status = check_kernel_library()) return status;
    const OpKernel *lacking = nullptr;
    for (int32_t i = 0; i < heed_kernel_table.num_ops; i++) {
        const OpKernel &candidate = heed_kernel_table.ops[i];
        if (candidate.op != op || candidate.dtype != dtype || candidate.kv_dtype != kv_dtype) continue;
        if (candidate.isa > highest_op_isa(HEED_CPU)) continue;
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

Isa highest_op_isa(heed_device device) { return highest[device].load(std::memory_order_relaxed); }

void limit_op_isa(Isa isa) { highest[device_of(isa)].store(isa, std::memory_order_relaxed); }

}  // namespace heed
