#include "runtime/ops/op_kernels.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "runtime/cpu.h"
#include "runtime/kernel_registry.h"
#include "runtime/ops/linear.h"
#include "runtime/status.h"

namespace heed {
namespace {

std::atomic<KernelTarget> highest[] = {highest_cpu_target, highest_cuda_target};  // by device

// The first of the table that matches; NULL without.
template <class Matches>
const OpKernel *find_op(Matches matches) {
    const OpKernel *const ops = heed_kernel_table.ops, *const end = ops + heed_kernel_table.num_ops;
    const OpKernel *const found = std::find_if(ops, end, matches);
    return found == end ? nullptr : found;
}

bool has_tile(const OpKernel &kernel, const OpKernel &tile) {
    return kernel.target == tile.target && kernel.rows == tile.rows && kernel.columns == tile.columns;
}

}  // namespace

const OpKernel *find_linear_rows(const OpKernel &tile, heed_dtype dtype) {
    return find_op([&](const OpKernel &kernel) {
        return kernel.op == Op::linear_rows && kernel.dtype == dtype && kernel.target == tile.target &&
               kernel.rows == tile.rows;
    });
}

const OpKernel *find_whole_tiles(const OpKernel &tile) {
    return find_op(
        [&](const OpKernel &kernel) { return kernel.op == Op::attention_products && has_tile(kernel, tile); });
}

InPlaceKernels find_in_place(const OpKernel &tile, heed_dtype dtype) {
    const auto find = [&](bool narrow) {
        return find_op([&](const OpKernel &kernel) {
            return kernel.op == Op::linear_in_place && kernel.dtype == dtype && kernel.target == tile.target &&
                   (kernel.columns < tile.columns) == narrow;
        });
    };
    return {find(false), find(true)};
}

namespace {

heed_status find_best(Op op, heed_dtype dtype, heed_dtype kv_dtype, const char *score_mod, const OpKernel **kernel) {
    *kernel = nullptr;
    if (const heed_status status = check_kernel_library()) return status;
    const OpKernel *lacking = nullptr;
    for (int32_t i = 0; i < heed_kernel_table.num_ops; i++) {
        const OpKernel &candidate = heed_kernel_table.ops[i];
        if (candidate.op != op || candidate.dtype != dtype || candidate.kv_dtype != kv_dtype ||
            std::strcmp(candidate.score_mod, score_mod) != 0) {
            continue;
        }
        if (candidate.target > highest_op_target(HEED_CPU)) continue;
        if (!cpu_supports(candidate.target.isa())) {
            lacking = &candidate;
        } else if (*kernel == nullptr || candidate.target > (*kernel)->target) {
            *kernel = &candidate;
        }
    }
    if (*kernel != nullptr) return HEED_OK;
    if (lacking != nullptr) {
        return fail(HEED_UNSUPPORTED, "%s: %s", lacking->name, target_reason(lacking->target));
    }
    if (score_mod[0] != '\0') {
        return fail(HEED_UNSUPPORTED, "this program's kernel library has no kernel of %s for %s with score_mod \"%s\"",
                    op_name(op), dtype_name(dtype), score_mod);
    }
    return fail(HEED_UNSUPPORTED, "this program's kernel library has no kernel of %s for %s, %s", op_name(op),
                dtype_name(dtype), dtype_name(kv_dtype));
}

// linear for dtype.
heed_status find_linear(heed_dtype dtype, const OpKernel **best) {
    const heed_status status = find_op_kernel(Op::linear, dtype, dtype, best);
    if (status || !floats_are_faster(**best)) return status;
    const OpKernel *const in_floats = find_op([&](const OpKernel &kernel) {
        return kernel.op == Op::linear && kernel.dtype == dtype && kernel.target == KernelTarget(Isa::avx512);
    });
    if (in_floats != nullptr) *best = in_floats;
    return HEED_OK;
}

// attention_scores for the tile, of elements as linear_rows leaves them.
const OpKernel *find_sums(const OpKernel &tile, heed_dtype step) {
    return find_op([&](const OpKernel &kernel) {
        return kernel.op == Op::attention_scores && kernel.dtype == step && has_tile(kernel, tile);
    });
}

}  // namespace

heed_status find_op_kernel(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **kernel) {
    return find_best(op, dtype, kv_dtype, "", kernel);
}

heed_status find_scored_kernel(Op op, heed_dtype dtype, const char *score_mod, const OpKernel **kernel) {
    return find_best(op, dtype, dtype, score_mod, kernel);
}

bool floats_are_faster(const OpKernel &kernel) {
    const KernelTarget dots = Isa::avx512bf16;
    return kernel.target == dots && has_slow_bf16_dots() && highest_op_target(HEED_CPU) != dots;
}

heed_status find_linear_kernels(heed_dtype dtype, heed_linear_weights *w) {
    const OpKernel *best = nullptr;
    if (const heed_status status = find_linear(dtype, &best)) return status;
    w->columns = best->columns;
    w->num_tiles = 0;
    for (int32_t i = 0; i < heed_kernel_table.num_ops; i++) {
        const OpKernel &tile = heed_kernel_table.ops[i];
        if (tile.op != Op::linear || tile.dtype != dtype || tile.target != best->target) continue;
        const OpKernel *const packs = find_linear_rows(tile, dtype);
        if (packs == nullptr || w->num_tiles == w->max_tiles) continue;
        w->tiles[w->num_tiles] = &tile;
        w->row_tiles[w->num_tiles++] = packs;
    }
    // The tile with most sums, rows x panels, comes first. Of those with as many the one with fewer rows needs fewer
    // instructions.
    const auto sums_of = [](const OpKernel *tile) { return tile->rows > 1 ? tile->rows * panels_at_once(*tile) : 1; };
    const auto is_before = [&](const OpKernel *a, const OpKernel *b) {
        const int32_t of_a = sums_of(a), of_b = sums_of(b);
        return of_a != of_b ? of_a > of_b : a->rows < b->rows;
    };
    std::sort(w->tiles, w->tiles + w->num_tiles, is_before);
    std::sort(w->row_tiles, w->row_tiles + w->num_tiles, is_before);
    w->k_step = dtype == HEED_BF16 && best->target.isa() >= Isa::avx512bf16 ? 2 : 1;
    w->in_place = find_in_place(*best, dtype);
    if (w->num_tiles > 0) w->sums = find_sums(*w->tiles[0], w->k_step == 2 ? HEED_BF16 : HEED_F32);
    if (w->num_tiles > 0) return HEED_OK;
    return fail(HEED_UNSUPPORTED, "this program's kernel library has no kernel of linear_rows for %s",
                dtype_name(dtype));
}

KernelTarget highest_op_target(heed_device device) { return highest[device].load(std::memory_order_relaxed); }

void limit_op_target(KernelTarget target) { highest[target.device()].store(target, std::memory_order_relaxed); }

}  // namespace heed
