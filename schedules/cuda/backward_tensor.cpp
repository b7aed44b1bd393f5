// Gradients of attention on tensor cores: a block has 64 rows of a side, of keys or of queries, a warp 16 of them and
// all columns of their scores and of their sums, a thread what mma.m16n8k16 gives it.
//
//   x_rows, x_range: where the rows are, which rows of the other side they meet; x_tile: the rows, of both products
//   for each head of the group, for each 64 rows of the other side that some row meets (32 of more than 64 elements)
//     w_tile, stats: the next step's, from tensors to shared memory (PipelineCopies)
//     sum = x_tile x w_tile, of both products
//     seen: what hides scores, where some row does not meet all rows of the step (BranchBlocks)
//     terms: gradients of scores, and weights; in a form of their own where the call changes logits (BranchBlocks)
//     sums += terms x w_tile, of each (SumInRegisters)
//   the same once more where the result is in doubt (RepeatLoops): hidden rows may be no numbers
#include <set>

#include "generators/lowering/carried.h"
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/block_branches.h"
#include "generators/lowering/cuda/pipeline_copies.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/repeat_loops.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/cuda/sum_in_registers.h"
#include "generators/lowering/cuda/tile_products.h"
#include "generators/lowering/trim_loops.h"
#include "generators/ops/backward_sums.h"
#include "schedules/cuda/operation.h"
#include "schedules/cuda/tile_product.h"

namespace heed {

using namespace Halide;

namespace {

constexpr int core_threads = 128, core_rows = 64, width = 8;  // elements of 16 bytes

BackwardSumsDevice::Tile core_tile(int head_dim) {
    const int met = head_dim <= 64 ? 64 : 32;
    return {{core_rows, met, width, head_dim / width, false}, width, head_dim, true};
}

class GradientStages {
public:
    GradientStages(BackwardSumsDevice &kernel, BackwardSumsDevice::Side &side)
        : kernel(kernel), side(side), tile(kernel.tile), step(side.sums, side.steps.x),
          block(kernel.named, side.all.z) {}

    void apply() {
        results();
        places();
        products();
        terms();
        sums();
    }

private:
    BackwardSumsDevice &kernel;
    BackwardSumsDevice::Side &side;
    const BackwardSumsDevice::Tile &tile;
    const LoopLevel step, block;

    bool is_of_keys() const { return side.side == backward_keys; }

    Func &bounded(Func &f) {
        const std::pair<Var, int> extents[] = {{kernel.row, tile.products.rows},
                                               {kernel.column, tile.products.columns},
                                               {kernel.d, tile.columns},
                                               {kernel.u, 4},
                                               {kernel.number, is_of_keys() ? 4 : 2},
                                               {kernel.across, 1},
                                               {kernel.down, 1},
                                               {kernel.sequence, 1},
                                               {kernel.pair, tile.products.columns / 2}};
        for (const Var &v : f.args()) {
            for (const auto &[of, extent] : extents) {
                if (v.name() == of.name()) f.bound_extent(v, extent);
            }
        }
        return f;
    }
    Func &in_step(Func &f, MemoryType where = MemoryType::Stack) { return bounded(f.compute_at(step).store_in(where)); }
    Func &in_block(Func &f, MemoryType where = MemoryType::Stack) {
        return bounded(f.compute_at(block).store_in(where));
    }
    // What is read of a stage for one element, or several that are named.
    static Func at_element(const Func &f, const LoopLevel &at, const std::set<std::string> &several = {}) {
        Func own = f;
        own.compute_at(at).store_in(MemoryType::Register);
        for (const Var &v : own.args()) {
            if (several.count(v.name()) == 0) own.bound_extent(v, 1);
        }
        return own;
    }

    void in_tiles(Stage stage, const VarOrRVar &column, const VarOrRVar &row,
                  const std::vector<VarOrRVar> &outer = {}) {
        const Dealt dealt = in_low_fragments(stage, column, row);
        std::vector<VarOrRVar> around = {dealt.thread};
        around.insert(around.end(), outer.begin(), outer.end());
        order(stage, dealt.own, around);
        unroll(stage.gpu_threads(dealt.thread), dealt.own);
    }
    void in_rows(Stage stage, std::vector<VarOrRVar> own = {}) {
        const Dealt dealt = rows_in_fragments(stage, kernel.row, kernel.u, 2);
        own.insert(own.begin(), dealt.own[0]);
        order(stage, own, {dealt.thread});
        unroll(stage.gpu_threads(dealt.thread), own);
    }

    void results() {
        Stage stored = kernel.named.update();
        in_tiles(stored, side.all.x, side.all.y, {side.all.z});
        stored.gpu_blocks(side.all.z);
        in_block(side.doubts, MemoryType::Register);
        in_rows(side.doubts);
        in_rows(side.doubts.update(), {side.over_pairs.x, side.over_pairs.y});
    }

    void places() {
        in_block(side.fields);
        in_block(side.met);
        in_block(side.x_rows).gpu_threads(kernel.row);
        in_block(side.x_range).gpu_threads(kernel.row);
        if (is_of_keys()) {
            in_step(side.stats).vectorize(kernel.number).gpu_threads(kernel.pair);
        } else {
            in_block(side.stats).unroll(kernel.number).gpu_threads(kernel.row);
        }
    }

    void products() {
        for (TileProduct &product : side.products) {
            const RDom &over = product.over_k;
            schedule_sum(product.sum, step, {tile.products.columns, tile.products.rows}, in_low_fragments,
                         {over.x, over.y}, {over.z});
            schedule_copies(product, product.x_tile, tile.products.rows, core_threads);
            product.x_tile.compute_at(block).store_in(MemoryType::Stack);
            schedule_copies(product, product.w_tile, tile.products.columns, core_threads);
            product.w_tile.compute_at(step).store_in(MemoryType::Stack);
        }
    }

    void terms() {
        in_step(side.seen, MemoryType::Register);
        in_tiles(side.seen, kernel.column, kernel.row);
        at_element(side.x_range.in(side.seen), LoopLevel(side.seen, Var("rows")));

        in_step(side.terms, MemoryType::Register);
        const Dealt dealt = in_low_fragments(side.terms, kernel.column, kernel.row);
        // Numbers of a query are read once for all keys of a thread.
        std::vector<VarOrRVar> own = dealt.own;
        if (is_of_keys()) std::swap(own[1], own[2]);
        order(side.terms, own, {dealt.thread});
        unroll(side.terms.gpu_threads(dealt.thread), own);
        const LoopLevel at_query(side.terms, own[2].var);
        if (is_of_keys()) {
            at_element(side.stats.in(side.terms), at_query, {kernel.number.name()})
                .bound_extent(kernel.number, 4)
                .vectorize(kernel.number);
        } else {
            at_element(side.stats.in(side.terms), at_query, {kernel.number.name()})
                .bound_extent(kernel.number, 2)
                .unroll(kernel.number);
        }
        const LoopLevel at_logit(side.terms, own[0].var);
        at_element(side.x_range.in(side.terms), at_logit);
        for (const Func &f : side.weight.stages()) at_element(f, at_logit);
    }

    void sums() {
        in_block(side.sums, MemoryType::Register);
        in_tiles(side.sums, kernel.d, kernel.row);
        in_tiles(side.sums.update(), kernel.d, kernel.row, {side.steps.x});
        for (Func &sum : side.step_sums) {
            schedule_sum(sum, step, {tile.columns, tile.products.rows}, in_low_fragments, {side.over.x}, {side.over.y});
        }
    }
};

}  // namespace

Module backward_tensor_cuda(const OpSpec &spec, BackwardSide of_side) {
    BackwardSumsDevice kernel(spec.type(), core_tile(spec.head_dim), {of_side});
    BackwardSumsDevice::Side &side = kernel.sides[0];
    GradientStages(kernel, side).apply();
    return compile_cuda(spec, kernel, core_threads, [&](Passes &passes) {
        passes.add_exactly<TrimLoops>(1, "loops over the other side", "steps$x");
        passes.add<LoadCarried>(side.sums.name());
        passes.add_exactly<RepeatLoops>(1, "repetitions", side.sums.name(), side.doubts.name(), "");
        passes.add_exactly<BranchBlocks>(4, "stages of two forms");
        const int num_sums = static_cast<int>(side.step_sums.size());
        for (int n = 0; n < num_sums; n++) {
            const std::string sums = side.sums.name() + (num_sums > 1 ? "." + std::to_string(n) : "");
            passes.add_exactly<SumInRegisters>(1, "sums", side.step_sums[static_cast<size_t>(n)].name(), sums);
        }
        passes.add_exactly<PipelineCopies>(2, "loops that copy ahead");
        passes.add_exactly<LowerTileProducts>(2 * (2 + num_sums), "products", spec.type(), core_threads);
        passes.add<PrivateRegisters>();
        passes.add<DropBarriers>();
        passes.add<LowerSharedMemory>(backward_tensor_shared_bytes(of_side, spec.head_dim));
        passes.add<ReadThreadsAnew>(std::set<std::string>{side.doubts.name()});
    });
}

int backward_tensor_threads() { return core_threads; }

int backward_tensor_shared_bytes(BackwardSide side, int head_dim) {
    const ProductTile tile = core_tile(head_dim).products;
    const int numbers = 16 * (sequence_padding + 5), of_rows = (2 * 8 + 2 * 4) * tile.rows;
    const int stats = backward_stat_bytes * (side == backward_keys ? 2 * tile.columns : tile.rows);
    return numbers + of_rows + stats + 2 * shared_bytes_of(tile, tile.rows) + 4 * shared_bytes_of(tile, tile.columns);
}

}  // namespace heed
