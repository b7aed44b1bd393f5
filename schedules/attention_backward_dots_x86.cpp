// A tile of the gradients of bf16 on dot products of pairs: the five products of attention_backward_tiles.h, each in
// register tiles of 8 rows and two vectors, 16 accumulators over all of the reduction, whose left operand is broadcast
// from memory; between them the elementwise part, by vectors of queries. A step of a register tile loads 2 vectors and
// 8 words for 16 instructions. With head_dim 128 the operands of a block take 130 KiB and the sums 96 KiB: they stay in
// L2; the vectors of a product, at most 16 KiB, in L1.
#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/prefetch_rows.h"
#include "schedules/attention_backward.h"

namespace heed {

using namespace Halide;

namespace {

using Block = BackwardTilesBlock;

class DotsSchedule {
public:
    DotsSchedule(AttentionBackwardTilesKernel &kernel, const Machine &machine) : kn(kernel), lanes(machine.lanes) {}

    void apply() {
        Var io("io");
        for (Func sum : {kn.scores, kn.weight_grads}) {
            Func copy = sum.in();
            copy.compute_root()
                .store_in(MemoryType::Stack)
                .bound_extent(kn.i, Block::queries)
                .bound_extent(kn.j, Block::keys);
            product(copy, sum, kn.i, kn.j);
        }
        kn.grads.bound(kn.i, 0, Block::queries)
            .bound(kn.j, 0, Block::keys)
            .split(kn.i, io, kn.i, lanes)
            .vectorize(kn.i);
        for (Func f : {kn.weights, kn.dropout}) {
            f.compute_at(kn.grads, io)
                .store_in(MemoryType::Register)
                .bound_extent(kn.i, lanes)
                .bound_extent(kn.j, 1)
                .vectorize(kn.i, lanes);
        }
        for (const BackwardForm form : {backward_plain, backward_positioned, backward_scored})
            kn.grads.specialize(kn.form == form);
        words(kn.grad_words, kn.i, Block::queries, kn.p, Block::keys / 2);
        for (Func pairs : {kn.weight_pairs, kn.grad_pairs}) words(pairs, kn.p, Block::queries / 2, kn.j, Block::keys);
        for (const auto &[out, sum] : {std::pair{&kn.dv, &kn.dv_tile}, {&kn.dk, &kn.dk_tile}}) {
            out->bound(kn.c, 0, Block::chunk).bound(kn.j, 0, Block::keys);
            product(*out, *sum, kn.c, kn.j);
        }
        kn.dq.bound(kn.i, 0, Block::queries).bound(kn.c, 0, Block::chunk);
        product(kn.dq, kn.dq_tile, kn.i, kn.c);
    }

private:
    static constexpr int rows = 8;

    AttentionBackwardTilesKernel &kn;
    const int lanes;

    // Left operands, which are read word by word.
    void words(Func &of, const Var &column, int columns, const Var &row, int num_rows) {
        of.compute_root()
            .store_in(MemoryType::Stack)
            .bound_extent(column, columns)
            .bound_extent(row, num_rows)
            .vectorize(column, lanes);
    }

    void product(Func &out, Func &sum, const Var &column, const Var &row) {
        Var ct("ct"), rt("rt");
        const int columns = 2 * lanes;
        out.tile(column, row, ct, rt, column, row, columns, rows).vectorize(column, lanes).unroll(column).unroll(row);
        const RVar over = sum.rvars(0)[0];
        sum.compute_at(out, ct)
            .store_in(MemoryType::Register)
            .bound_extent(column, columns)
            .bound_extent(row, rows)
            .vectorize(column, lanes)
            .unroll(column)
            .unroll(row)
            .update()
            .reorder(column, row, over)
            .vectorize(column, lanes)
            .unroll(column)
            .unroll(row);
    }
};

}  // namespace

// The next block of query rows and its dq are asked for while this one is at work. As words a block is there twice, and
// the loops read the second one.
Passes schedule_attention_backward_dots(AttentionBackwardTilesKernel &kernel, const Machine &machine) {
    DotsSchedule(kernel, machine).apply();
    const Expr q = PrefetchRows::all_rows("q_pairs"), dout = PrefetchRows::all_rows("dout_pairs");
    std::vector<PrefetchRows::Ahead> ahead;
    for (const int half : {1, 2}) {
        ahead.push_back({"q_pairs", "q_pairs", half * q});
        ahead.push_back({"q_pairs", "dq_before", (half + 1) * q});
        ahead.push_back({"dout_pairs", "dout_pairs", half * dout});
    }
    Passes passes;
    passes.add<PrefetchRows>(std::vector<std::string>{"dk_tile.s1", "dv_tile.s1"}, ahead);
    passes.add<LowerBf16Dots>();
    return passes;
}

}  // namespace heed
