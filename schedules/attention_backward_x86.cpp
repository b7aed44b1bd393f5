// A tile of the gradients on x86: five products of the same shape, rows x columns accumulators in registers over all of
// the reduction, whose left operand is broadcast from memory and whose right one is two vectors:
//
//   rows x columns of (queries x keys): scores and weight_grads over d, then the elementwise part, by columns of keys
//   rows x columns of (keys x elements): dv and dk over the queries
//   rows x columns of (queries x elements): dq over the keys
//
// The tile of register accumulators as in linear_x86.cpp. With head_dim 128 the operands of a block take 360 KiB: they
// stay in L2; the two vectors' columns of the right operand, at most 16 KiB, and the rows of the left one in L1.
#include "generators/attention/backward.h"
#include "generators/lowering/prefetch_rows.h"
#include "schedules/attention_backward.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

namespace {

class BackwardSchedule {
public:
    BackwardSchedule(AttentionBackwardKernel &kernel, const Machine &machine)
        : kn(kernel), rows(kernel.tile.rows), columns(kernel.tile.columns), lanes(machine.lanes) {}

    void apply() {
        Var jx{"jx"}, io{"io"};
        kn.grads.tile(kn.j, kn.i, jx, io, kn.j, kn.i, BackwardTile::chunk, rows, TailStrategy::RoundUp)
            .reorder(kn.j, kn.i, io, jx)
            .vectorize(kn.j, lanes);
        dots(kn.dots, kn.scores, jx);
        dots(kn.weight_dots, kn.weight_grads, jx);
        for (Func f : {kn.weights, kn.dropout}) {
            f.compute_at(kn.grads, kn.i)
                .store_in(MemoryType::Register)
                .bound_extent(kn.j, BackwardTile::chunk)
                .bound_extent(kn.i, 1)
                .vectorize(kn.j, lanes);
        }
        for (const BackwardForm form : {backward_plain, backward_positioned, backward_scored})
            kn.grads.specialize(kn.form == form);
        products(kn.dv_tile, kn.dv, kn.j);
        products(kn.dk_tile, kn.dk, kn.j);
        products(kn.dq_tile, kn.dq, kn.i);
    }

private:
    AttentionBackwardKernel &kn;
    const int rows, columns, lanes;

    // All rows of a tile's columns, one product after the other: the columns of one operand stay in L1.
    void dots(AttentionBackwardKernel::Product &product, Func &copy, const Var &level) {
        Var it{"it"}, jt{"jt"};
        copy.compute_at(kn.grads, level)
            .store_in(MemoryType::Stack)
            .bound_extent(kn.j, BackwardTile::chunk)
            .bound_storage(kn.i, BackwardTile::queries)
            .tile(kn.j, kn.i, jt, it, kn.j, kn.i, columns, rows, TailStrategy::RoundUp)
            .reorder(kn.j, kn.i, it, jt)
            .unroll(jt)
            .vectorize(kn.j, lanes)
            .unroll(kn.j)
            .unroll(kn.i);
        in_registers(product.sum.compute_at(copy, it), product.over, kn.j, kn.i);
    }

    void products(AttentionBackwardKernel::Product &product, Func &out, const Var &row) {
        Var ct{"ct"}, rt{"rt"};
        out.bound(kn.c, 0, BackwardTile::chunk)
            .tile(kn.c, row, ct, rt, kn.c, row, columns, rows, TailStrategy::RoundUp)
            .reorder(kn.c, row, rt, ct, kn.x)
            .vectorize(kn.c, lanes)
            .unroll(kn.c)
            .unroll(row);
        in_registers(product.sum.compute_at(out, rt), product.over, kn.c, row);
        out.specialize(kn.hides_nonfinite == 0);
    }

    void in_registers(Func &sum, const RDom &over, const Var &column, const Var &row) {
        std::vector<VarOrRVar> loops = {column, row, over[0]};
        if (over.dimensions() == 2) loops.emplace_back(over[1]);
        sum.store_in(MemoryType::Register)
            .bound_extent(column, columns)
            .bound_extent(row, rows)
            .vectorize(column, lanes)
            .unroll(column)
            .unroll(row)
            .update()
            .reorder(loops)
            .vectorize(column, lanes)
            .unroll(column)
            .unroll(row);
    }
};

// Rows that need no spill, see linear_x86.cpp; they divide the block.
BackwardTile backward_tile(const Machine &machine) {
    return {machine.vector_registers == 32 ? 12 : machine.has_fma ? 6 : 4, 2 * machine.lanes};
}

// The next block of query rows, which is after this one, and its dq are asked for while this one is at work.
OpModule make_in_floats(const OpSpec &spec) {
    AttentionBackwardKernel kernel(backward_tile(spec.machine()), spec.score_mod);
    BackwardSchedule(kernel, spec.machine()).apply();
    Passes passes;
    passes.add<PrefetchRows>(std::vector<std::string>{"dk_tile.s1", "dv_tile.s1"},
                             std::vector<PrefetchRows::Ahead>{{"q", "q", PrefetchRows::all_rows("q")},
                                                              {"q", "dq_before", PrefetchRows::all_rows("q")},
                                                              {"dout", "dout", PrefetchRows::all_rows("dout")}});
    return compile(spec, kernel, passes, BackwardTile::queries, BackwardTile::keys);
}

OpModule make_in_bf16(const OpSpec &spec) {
    AttentionBackwardTilesKernel kernel(spec.score_mod);
    const Machine machine = spec.machine();
    const Passes passes = machine.has_bf16_tiles ? schedule_attention_backward_amx(kernel, machine)
                                                 : schedule_attention_backward_dots(kernel, machine);
    return compile(spec, kernel, passes, BackwardTilesBlock::queries, BackwardTilesBlock::keys);
}

}  // namespace

OpModule make_attention_backward(const OpSpec &spec) {
    return spec.type() == ElementType::bf16 ? make_in_bf16(spec) : make_in_floats(spec);
}

}  // namespace heed
