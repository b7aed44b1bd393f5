// What comes before and after the tiles of gradients: bound by memory, by vectors of the elements of a chunk. A block
// of rows is read from L2 or beyond and leaves through L1; what is transposed gathers from it.
#include "generators/attention/backward_rows.h"
#include "schedules/operation.h"
#include "schedules/transposed_tiles.h"

namespace heed {

using namespace Halide;

// A row at once: 32 sums in registers, then their halves.
OpModule make_attention_backward_stats(const OpSpec &spec) {
    BackwardStatsKernel kernel(spec.type());
    const int lanes = spec.machine().lanes;
    kernel.products.compute_at(kernel.delta, kernel.row)
        .store_in(MemoryType::Stack)
        .bound_extent(kernel.c, backward_chunk)
        .bound_extent(kernel.row, 1)
        .vectorize(kernel.c, lanes)
        .unroll(kernel.c)
        .update()
        .reorder(kernel.c, kernel.over_chunks, kernel.row)
        .vectorize(kernel.c, lanes)
        .unroll(kernel.c);
    return compile(spec, kernel);
}

namespace {

// Squares of rows of whole vectors in registers, other rows element by element.
void transpose(BackwardRowsKernel &kernel, int lanes) {
    Var square{"square"}, of_d{"of_d"};
    kernel.lanes.reorder(kernel.c, kernel.d, kernel.chunk).vectorize(kernel.c, lanes);
    kernel.lanes.specialize(kernel.has_squares)
        .split(kernel.d, square, of_d, lanes, TailStrategy::GuardWithIf)
        .reorder(of_d, square, kernel.c, kernel.chunk)
        .unroll(of_d);
    schedule_square(kernel.squares, kernel.lanes, square, lanes);
}

}  // namespace

OpModule make_attention_backward_rows(const OpSpec &spec) {
    const int lanes = spec.machine().lanes;
    BackwardRowsKernel kernel(spec.type(), lanes);
    kernel.chunks.vectorize(kernel.c, lanes).unroll(kernel.c);
    transpose(kernel, lanes);
    kernel.largest_of_lane.compute_at(kernel.largest, kernel.u)
        .store_in(MemoryType::Stack)
        .bound_extent(kernel.c, backward_chunk)
        .vectorize(kernel.c, lanes)
        .update()
        .reorder(kernel.c, kernel.over_rows.x, kernel.over_rows.y)
        .vectorize(kernel.c, lanes)
        .unroll(kernel.c);
    return compile(spec, kernel);
}

// By chunks of a row; sums that have rows side by side are gathered.
OpModule make_attention_backward_store(const OpSpec &spec) {
    BackwardStoreKernel kernel(spec.type());
    const int lanes = spec.machine().lanes;
    Var chunk{"chunk"}, c{"c"};
    kernel.out.split(kernel.d, chunk, c, backward_chunk, TailStrategy::GuardWithIf)
        .reorder(c, chunk, kernel.row)
        .vectorize(c, lanes);
    kernel.out.specialize(kernel.sums.dim(0).stride() == 1);
    return compile(spec, kernel);
}

OpModule make_attention_backward_bias(const OpSpec &spec) {
    BackwardBiasKernel kernel;
    const int lanes = spec.machine().lanes;
    Var jo{"jo"}, ji{"ji"};
    kernel.dbias.split(kernel.j, jo, ji, lanes, TailStrategy::GuardWithIf).vectorize(ji);
    kernel.sum.compute_at(kernel.dbias, jo)
        .store_in(MemoryType::Register)
        .bound_storage(kernel.j, lanes)
        .bound_extent(kernel.i, 1)
        .vectorize(kernel.j, lanes, TailStrategy::RoundUp)
        .update()
        .vectorize(kernel.j, lanes, TailStrategy::GuardWithIf);
    return compile(spec, kernel);
}

OpModule make_attention_backward_sinks(const OpSpec &spec) {
    BackwardSinksKernel kernel;
    kernel.sum.compute_root().store_in(MemoryType::Stack).bound_extent(kernel.u, 1);
    return compile(spec, kernel);
}

}  // namespace heed
