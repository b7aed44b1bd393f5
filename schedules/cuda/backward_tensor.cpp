// Gradients of attention on tensor cores: a block has 64 rows of a side, of keys or of queries, a warp 16 of them and
// all columns of their scores and of their sums, a thread what mma.m16n8k16 gives it. Of more than 128 elements 32
// rows, of which two warps each have all scores and half of the columns of the sums.
//
//   x_rows, x_range, x_lines: where the rows are, which rows of the other side they meet; x_tile: the rows, of both
//     products
//   for each 32 rows of the other side that some row meets, of each head of the group (64 of plain kernels of up to 64
//   elements, 16 of more than 128)
//     w_tile, stats: the next step's, from tensors to shared memory (PipelineCopies)
//     sum = x_tile x w_tile, of both products
//     counted, gathered, kept: dropout; stages: what changes logits, each where the call has it (BranchBlocks)
//     seen: what hides scores, where some row does not meet all rows of the step (BranchBlocks)
//     terms: gradients of scores, and weights
//     sums += terms x w_tile, of each (SumInRegisters)
//   the same once more where the result is in doubt (RepeatLoops): hidden rows may be no numbers
//
// A step of keys, f16, d64, plain (sm_80): 495 instructions for 128 products, without what is seldom done, 612 where
// some rows are hidden; 244 registers. At d128 429 and 490, not plain 521 and 598; no spills on any chip.
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
#include "generators/ops/backward_tensor.h"
#include "schedules/cuda/operation.h"
#include "schedules/cuda/tile_product.h"

namespace heed {

using namespace Halide;

namespace {

constexpr int block_rows = 64, width = 8;  // elements of 16 bytes

// More than 128 elements: two warps share rows, since 16 rows of both sums of keys would have 256 registers of a
// thread.
int parts_of(int head_dim) { return head_dim <= 128 ? 1 : 2; }

ProductTile tensor_tile(int head_dim, bool is_plain) {
    const int columns = head_dim > 128 ? 16 : is_plain && head_dim <= 64 ? 64 : 32;
    return {block_rows / parts_of(head_dim), columns, width, head_dim / width, false};
}

class TensorGradients {
public:
    explicit TensorGradients(BackwardTensorDevice &kernel)
        : kernel(kernel), tile(kernel.tile), step(kernel.sums, kernel.steps.x), block(kernel.named, kernel.all.z) {}

    // The rows of the block that are held in registers.
    std::set<std::string> held;

    void apply() {
        results();
        places();
        for (TileProduct &product : kernel.products) of_scores(product);
        terms();
        sums();
    }

private:
    BackwardTensorDevice &kernel;
    const ProductTile &tile;
    const LoopLevel step, block;

    bool is_of_keys() const { return kernel.side == backward_keys; }

    Func &bounded(Func &f) {
        const std::pair<Var, int> extents[] = {{kernel.row, tile.rows},
                                               {kernel.column, tile.columns},
                                               {kernel.d, kernel.columns},
                                               {kernel.u, 4},
                                               {kernel.part, kernel.num_parts},
                                               {kernel.number, is_of_keys() ? 4 : 2},
                                               {kernel.across, 1},
                                               {kernel.down, 1},
                                               {kernel.sequence, 1},
                                               {kernel.pair, tile.columns / 2}};
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
    // What a stage reads of another one, in registers.
    Func in_registers(Func of, const LoopLevel &at) const {
        of.compute_at(at).store_in(MemoryType::Register);
        for (const Var &v : of.args()) {
            v.name() == kernel.number.name() ? of.bound(v, 0, is_of_keys() ? 4 : 2) : of.bound_extent(v, 1);
        }
        return of;
    }

    Dealt of_part(Stage stage, const Dealt &dealt, const VarOrRVar &part) const {
        return in_parts(stage, dealt, part, kernel.num_parts);
    }
    void in_tiles(Stage stage, const VarOrRVar &column, const VarOrRVar &row, const VarOrRVar &part,
                  const std::vector<VarOrRVar> &outer = {}) {
        deal_out(stage, of_part(stage, in_low_fragments(stage, column, row), part), {}, outer);
    }
    void in_rows(Stage stage, const std::vector<VarOrRVar> &inner = {}) {
        deal_out(stage, of_part(stage, rows_in_fragments(stage, kernel.row, kernel.u, 2), kernel.part), inner);
    }

    void results() {
        Stage stored = kernel.named.update();
        in_tiles(stored, kernel.all.x, kernel.all.y, kernel.all.w, {kernel.all.z});
        stored.gpu_blocks(kernel.all.z);
        for (Func *f : {&kernel.doubts, &kernel.out_rows}) {
            in_block(*f, MemoryType::Register);
            in_rows(*f);
        }
        in_rows(kernel.doubts.update(), {kernel.over_pairs.x, kernel.over_pairs.y});
    }

    void places() {
        in_block(kernel.fields_of);
        in_block(kernel.met);
        in_block(kernel.x_rows).gpu_threads(kernel.row);
        in_block(kernel.x_range).gpu_threads(kernel.row);
        if (!kernel.is_plain) {
            in_block(kernel.place);
            in_block(kernel.x_lines).gpu_threads(kernel.row);
        }
        if (is_of_keys()) {
            in_step(kernel.stats).vectorize(kernel.number).gpu_threads(kernel.pair);
        } else {
            in_block(kernel.stats).unroll(kernel.number).gpu_threads(kernel.row);
        }
    }

    void of_scores(TileProduct &product) {
        const RDom &over = product.over_k;
        schedule_sum(product.sum, step, {tile.columns, tile.rows}, in_low_fragments, {over.x, over.y}, {over.z},
                     kernel.num_parts);
        schedule_copies(product, product.x_tile, tile.rows, backward_tensor_threads);
        product.x_tile.compute_at(block).store_in(MemoryType::Stack);
        if (tile.chunks * tile.width <= 64) {  // a thread keeps the elements of the block's rows that it has
            Func own = product.x_tile.in(product.sum);
            held.insert(own.name());
            schedule_own(product, own, block, tile.rows, 2);
        }
        schedule_copies(product, product.w_tile, tile.columns, backward_tensor_threads);
        product.w_tile.compute_at(step).store_in(MemoryType::Stack);
    }

    void dropout() {
        in_step(kernel.counted, MemoryType::Register);
        in_rows(kernel.counted);
        in_rows(kernel.counted.update(), {kernel.over_counters});
        for (Func &f : kernel.gathered) {
            in_step(f, MemoryType::Register);
            in_rows(f);
        }
        in_step(kernel.kept, MemoryType::Register);
        in_rows(kernel.kept);
        // A loop, since it has much code that is seldom needed.
        Stage of_each = kernel.kept.update();
        const Dealt dealt = of_part(of_each, rows_in_fragments(of_each, kernel.row, kernel.u, 2), kernel.part);
        order(of_each, {dealt.own[0], kernel.over_columns.x, kernel.over_columns.y}, {dealt.thread});
        unroll(of_each.gpu_threads(dealt.thread), {dealt.own[0]});
    }

    void terms() {
        in_step(kernel.seen, MemoryType::Register);
        in_tiles(kernel.seen, kernel.column, kernel.row, kernel.part);
        in_registers(kernel.x_range.in(kernel.seen), LoopLevel(kernel.seen, Var("rows")));
        if (!kernel.is_plain) dropout();
        for (Func &stage : kernel.stages) {
            in_step(stage, MemoryType::Register);
            const VarOrRVar outer = by_queries(stage);
            if (stage.name() == kernel.graded.name()) read_stats(stage, outer);
        }
        in_step(kernel.terms, MemoryType::Register);
        read_stats(kernel.terms, by_queries(kernel.terms));
    }
    // Numbers of a query are read once for all keys of a thread. Returns its loop.
    VarOrRVar by_queries(Func &f) {
        Dealt dealt = of_part(f, in_low_fragments(f, kernel.column, kernel.row), kernel.part);
        if (is_of_keys()) std::swap(dealt.own[1], dealt.own[2]);
        deal_out(f, dealt);
        return dealt.own[2];
    }
    void read_stats(Func &f, const VarOrRVar &of_query) {
        Func stats = in_registers(kernel.stats.in(f), LoopLevel(f, of_query.var));
        is_of_keys() ? stats.vectorize(kernel.number) : stats.unroll(kernel.number);
    }

    void sums() {
        in_block(kernel.sums, MemoryType::Register);
        in_tiles(kernel.sums, kernel.d, kernel.row, kernel.part);
        in_tiles(kernel.sums.update(), kernel.d, kernel.row, kernel.part, {kernel.steps.x});
        for (Func &sum : kernel.step_sums) {
            schedule_sum(sum, step, {kernel.columns, tile.rows}, in_low_fragments, {kernel.over.x}, {kernel.over.y},
                         kernel.num_parts);
        }
    }
};

}  // namespace

Module backward_tensor_cuda(const OpSpec &spec, BackwardSide side, bool is_plain) {
    BackwardTensorDevice kernel(spec.type(), side, is_plain, tensor_tile(spec.head_dim, is_plain),
                                parts_of(spec.head_dim), spec.score_mod);
    TensorGradients schedule(kernel);
    schedule.apply();
    return compile_cuda(spec, kernel, backward_tensor_threads, [&](Passes &passes) {
        passes.add_exactly<TrimLoops>(1, "loops over the other side", "steps$x");
        passes.add<LoadCarried>(kernel.sums.name());
        passes.add_exactly<RepeatLoops>(1, "repetitions", kernel.sums.name(), kernel.doubts.name(), schedule.held);
        // The weights of keys after dropout are another stage.
        const size_t of_dropout = is_plain ? 0 : 2 + kernel.gathered.size() + (side == backward_keys ? 1 : 0);
        // A score function is always there.
        const size_t with_branches = kernel.stages.size() - (kernel.asks_user() ? 1 : 0);
        const int of_logits = static_cast<int>(with_branches + of_dropout);
        passes.add_exactly<BranchBlocks>(2 * (1 + of_logits), "stages of two forms");
        const int num_sums = kernel.sums.outputs();
        for (int n = 0; n < num_sums; n++) {
            const std::string sums = kernel.sums.name() + (num_sums > 1 ? "." + std::to_string(n) : "");
            passes.add_exactly<SumInRegisters>(1, "sums", kernel.step_sums[static_cast<size_t>(n)].name(), sums);
        }
        passes.add_exactly<PipelineCopies>(2, "loops that copy ahead");
        passes.add_exactly<LowerTileProducts>(2 * (2 + num_sums), "products", backward_tensor_threads);
        passes.add<PrivateRegisters>();
        passes.add<DropBarriers>();
        passes.add<LowerSharedMemory>(backward_tensor_shared_bytes(side, spec.head_dim, is_plain));
        const std::set<std::string> doubts = {kernel.doubts.name()};
        std::set<std::string> made_anew = doubts;
        if (!is_plain) made_anew.insert({kernel.counted.name(), kernel.kept.name()});
        passes.add<ReadThreadsAnew>(doubts, made_anew);
    });
}

int backward_tensor_shared_bytes(BackwardSide side, int head_dim, bool is_plain) {
    const ProductTile tile = tensor_tile(head_dim, is_plain);
    const int numbers = 16 * (sequence_padding + 4 + (is_plain ? 0 : 3)),
              of_rows = ((is_plain ? 2 : 4) * 8 + 2 * 4) * tile.rows;
    const int stats = backward_stat_bytes * (side == backward_keys ? 2 * tile.columns : tile.rows);
    return numbers + of_rows + stats + 2 * shared_bytes_of(tile, tile.rows) + 4 * shared_bytes_of(tile, tile.columns);
}

}  // namespace heed
