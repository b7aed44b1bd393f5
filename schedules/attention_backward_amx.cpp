// A tile of the gradients on AMX: five products of matrix tiles, each from memory to memory, and between them the
// elementwise part, by vectors of queries:
//
//   scores, weight_grads    keys x queries sums over d, 16 KiB each
//   weights, score_grads    bf16, 8 KiB each; score_grads once more by pairs of keys
//   dv, dk, dq              by chunks of 32 elements, 8 KiB, which join the sums of all tiles
//
// At head_dim 128 a tile's operands take 130 KiB and its sums 96 KiB: they stay in L2.
#include "generators/lowering/bf16_tiles.h"
#include "schedules/attention_backward.h"

namespace heed {

using namespace Halide;

Passes schedule_attention_backward_amx(AttentionBackwardTilesKernel &kn, const Machine &machine) {
    using Block = BackwardTilesBlock;
    Var io("io");
    const auto matrix = [](Func &sum) { sum.store_in(MemoryType::Stack).update().unscheduled(); };
    for (Func *sum : {&kn.scores, &kn.weight_grads}) {
        sum->compute_root().bound_extent(kn.i, Block::queries).bound_extent(kn.j, Block::keys);
        matrix(*sum);
    }
    kn.grads.bound(kn.i, 0, Block::queries)
        .bound(kn.j, 0, Block::keys)
        .split(kn.i, io, kn.i, machine.lanes)
        .vectorize(kn.i);
    for (Func f : {kn.weights, kn.dropout}) {
        f.compute_at(kn.grads, io)
            .store_in(MemoryType::Register)
            .bound_extent(kn.i, machine.lanes)
            .bound_extent(kn.j, 1)
            .vectorize(kn.i, machine.lanes);
    }
    for (const BackwardForm form : {backward_plain, backward_positioned, backward_scored})
        kn.grads.specialize(kn.form == form);
    kn.grad_words.compute_root()
        .store_in(MemoryType::Stack)
        .bound_extent(kn.i, Block::queries)
        .bound_extent(kn.p, Block::keys / 2)
        .vectorize(kn.i, machine.lanes);

    const auto product = [&](Func &out, Func &sum, const Var &column, int columns, const Var &row, int num_rows) {
        out.bound(column, 0, columns).bound(row, 0, num_rows).vectorize(column, machine.lanes);
        sum.compute_at(out, kn.x).bound_extent(column, columns).bound_extent(row, num_rows);
        matrix(sum);
    };
    product(kn.dv, kn.dv_tile, kn.c, Block::chunk, kn.j, Block::keys);
    product(kn.dk, kn.dk_tile, kn.c, Block::chunk, kn.j, Block::keys);
    product(kn.dq, kn.dq_tile, kn.i, Block::queries, kn.c, Block::chunk);
    Passes passes;
    passes.add_exactly<LowerBf16Tiles>(5, "products of gradients that become matrix tiles");
    return passes;
}

}  // namespace heed
