// Gradients of attention on CUDA cores: a block has 32 rows of a side, of keys or of queries, meets 64 rows of the
// other at a time and sums 64 columns.
//
//   x_rows: where they are, and what is known of queries; what the table says of the sequence
//   for each head of the group, for each 64 rows of the other side that are visible
//     y_rows: where they are
//     for each of the two products, for each step of the head dim
//       x_tile, w_tile: from tensors to shared memory
//       sum += x_tile x w_tile, in registers: 4 x 4 a thread
//     dots: both, in shared memory
//     terms: gradients of scores, and weights, in their place; a thread has every fourth column of a row
//     for each 8 rows of the other side
//       y: from tensors to shared memory
//       sums += terms x y, in registers: 4 x 4 a thread of each
//
// Any type and alignment, so that products are made on CUDA cores: 193 instructions for the 128 of a thread's step of 8
// of the head dim (sm_80), 448 for the 256 of 8 rows of the other side (of queries 225 for 128), between them 45 for
// each logit, with mask, bias and ALiBi 55 more, with a softcap and with dropout about 75 more each. 32 KB of shared
// memory and 232 registers: two blocks fit an SM that has 64 KiB (sm_75).
#include "generators/ops/backward_sums.h"
#include "generators/lowering/carried.h"
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/replace_in_place.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/trim_loops.h"
#include "schedules/cuda/operation.h"
#include "schedules/cuda/tile_product.h"

namespace heed {

using namespace Halide;

namespace {

constexpr BackwardSumsDevice::Tile sums_tile = {{32, 64, 1, 8, true}, 8, 64};
constexpr int padding = 4;  // elements of a row of scores: rows that are read at once are in different banks

// What a step makes of scores: a stage in shared memory, rows fastest.
Func &of_step(BackwardSumsDevice &kernel, BackwardSumsDevice::Side &side, Func &f) {
    return f.compute_at(side.sums, side.over.z)
        .store_in(MemoryType::Stack)
        .bound_extent(kernel.column, kernel.tile.products.columns)
        .bound_extent(kernel.row, kernel.tile.products.rows)
        .bound_extent(kernel.across, 1)
        .bound_extent(kernel.h, 1)
        .bound_extent(kernel.down, 1)
        .reorder_storage(kernel.row, kernel.column, kernel.across, kernel.h, kernel.down)
        .align_storage(kernel.row, kernel.tile.products.rows + padding);
}

void schedule_scores(BackwardSumsDevice &kernel, BackwardSumsDevice::Side &side) {
    const ProductTile &tile = kernel.tile.products;
    for (TileProduct &product : side.products) {
        unroll(product.sum.update(), schedule_sum(product, {side.sums, side.over.z}, in_squares));
        schedule_floats(product, product.x_tile, tile.rows, backward_sums_threads);
        schedule_floats(product, product.w_tile, tile.columns, backward_sums_threads);
        product.x_tile.store_in(MemoryType::Stack);
        product.w_tile.store_in(MemoryType::Stack);
    }
    deal_out(side.dots, in_squares(of_step(kernel, side, side.dots), kernel.column, kernel.row));

    const Var number("number"), group("group"), thread("thread");
    of_step(kernel, side, side.terms)
        .split(kernel.column, number, group, backward_sums_threads / tile.rows)
        .fuse(kernel.row, group, thread)
        .reorder(number, thread)
        .gpu_threads(thread)
        .never_partition_all();
    for (Func f : side.weight.stages()) {
        f.compute_at(side.terms, number).store_in(MemoryType::Register);
        for (const Var &v : f.args()) f.bound_extent(v, 1);
    }
}

void schedule_sums(BackwardSumsDevice &kernel, BackwardSumsDevice::Side &side, Stage results) {
    deal_out(results, in_squares(results, side.all.x, side.all.y), {}, {side.all.z});
    results.gpu_blocks(side.all.z);
    side.fields.compute_at(kernel.named, side.all.z).store_in(MemoryType::Stack).bound_extent(kernel.sequence, 1);
    side.met.compute_at(kernel.named, side.all.z).store_in(MemoryType::Stack).bound_extent(kernel.down, 1);
    side.x_rows.compute_at(kernel.named, side.all.z)
        .store_in(MemoryType::Stack)
        .bound_extent(kernel.row, kernel.tile.products.rows)
        .bound_extent(kernel.down, 1)
        .gpu_threads(kernel.row);
    side.y_rows.compute_at(side.sums, side.over.z)
        .store_in(MemoryType::Stack)
        .bound_extent(kernel.column, kernel.tile.products.columns)
        .bound_extent(kernel.across, 1)
        .bound_extent(kernel.h, 1)
        .bound_extent(kernel.down, 1)
        .gpu_threads(kernel.column);
    unroll(side.sums.update(),
           schedule_sum(side.sums, {kernel.named, side.all.z}, {kernel.tile.columns, kernel.tile.products.rows},
                        in_squares, {side.over.x}, {side.over.y, side.over.z, side.over.w}));

    const Var round("round"), group("group"), thread("thread");
    side.y.compute_at(side.sums, side.over.y)
        .store_in(MemoryType::Stack)
        .bound_extent(kernel.d, kernel.tile.columns)
        .bound_extent(kernel.in_chunk, kernel.tile.chunk)
        .bound_extent(kernel.chunk, 1)
        .bound_extent(kernel.across, 1)
        .bound_extent(kernel.h, 1)
        .bound_extent(kernel.down, 1)
        .split(kernel.in_chunk, round, group, backward_sums_threads / kernel.tile.columns)
        .fuse(kernel.d, group, thread)
        .reorder(round, thread)
        .unroll(round)
        .gpu_threads(thread)
        .never_partition_all();
    side.y.in(side.sums)
        .compute_at(side.sums, side.over.x)
        .store_in(MemoryType::Register)
        .bound_extent(kernel.d, 4)
        .vectorize(kernel.d);
    side.terms.in(side.sums)
        .compute_at(side.sums, side.over.x)
        .store_in(MemoryType::Register)
        .bound_extent(kernel.row, 4)
        .vectorize(kernel.row);
}

}  // namespace

Module backward_sums_cuda(const OpSpec &spec) {
    BackwardSumsDevice kernel(spec.type(), sums_tile, spec.score_mod);
    int part = 0;
    for (BackwardSumsDevice::Side *side : {&kernel.keys, &kernel.queries}) {
        schedule_sums(kernel, *side, kernel.named.update(part++));
        schedule_scores(kernel, *side);
    }
    return compile_cuda(spec, kernel, backward_sums_threads, [&](Passes &passes) {
        passes.add_exactly<TrimLoops>(2, "loops over the other side", "over$z");
        const std::string keys = kernel.keys.dots.name(), queries = kernel.queries.dots.name();
        passes.add_exactly<ReplaceInPlace>(1, "gradients of scores", kernel.keys.terms.name() + ".0", keys + ".0");
        passes.add_exactly<ReplaceInPlace>(1, "weights", kernel.keys.terms.name() + ".1", keys + ".1");
        passes.add_exactly<ReplaceInPlace>(1, "gradients of scores", kernel.queries.terms.name(), queries + ".0");
        passes.add<LowerOnce>();
        passes.add<PrivateRegisters>();
        passes.add<DropBarriers>();
        passes.add<LowerSharedMemory>(backward_sums_shared_bytes());
    });
}

int backward_sums_shared_bytes() {
    const ProductTile &tile = sums_tile.products;
    const int scores = 4 * tile.columns * (tile.rows + padding), y = 4 * sums_tile.chunk * sums_tile.columns;
    const int numbers = 16 * (sequence_padding + 2), addresses = 8 * (tile.rows + tile.columns) + 8 * tile.columns;
    return numbers +
           2 * (addresses + scores + shared_bytes_of(tile, tile.rows) + shared_bytes_of(tile, tile.columns) + y);
}

}  // namespace heed
