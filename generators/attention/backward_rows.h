#pragma once
// Gradients of attention before and after their tiles: what a row of queries has (stats), rows as operands of tiles,
// and sums of tiles as the caller's rows. A call works on one block of rows of one head.

#include "generators/attention/transposed_tiles.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/fields.h"
#include "generators/contract/operations.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(BackwardStatsArguments, HEED_BACKWARD_STATS)
HEED_KERNEL_ARGUMENTS(BackwardRowsArguments, HEED_BACKWARD_ROWS_OF)
HEED_KERNEL_ARGUMENTS(BackwardStoreArguments, HEED_BACKWARD_STORE)
HEED_KERNEL_ARGUMENTS(BackwardBiasArguments, HEED_BACKWARD_BIAS)
HEED_KERNEL_ARGUMENTS(BackwardSinksArguments, HEED_BACKWARD_SINKS)

// Whether an element of out has a term in delta = dout . out: not where it is 0, since a row whose weights are all 0
// may meet anything in dout.
Halide::Expr has_delta(const Halide::Expr &out);

// delta in a sum for each element of a chunk, which then are added in halves.
struct BackwardStatsKernel : BackwardStatsArguments {
    Halide::Var c{"c"}, row{"row"};
    Halide::RDom over_chunks;
    Halide::Func products{"products"};  // (c, row)
    Halide::Func lse{"lse"}, delta{"delta"};

    explicit BackwardStatsKernel(ElementType type);

    Halide::Pipeline pipeline() const { return Halide::Pipeline({lse, delta}); }
};

struct BackwardRowsKernel : BackwardRowsArguments {
    Halide::Var c{"c"}, row{"row"}, chunk{"chunk"}, d{"d"}, u{"u"};
    Halide::Expr has_squares;       // rows of whole vectors: lanes are transposed in registers
    Halide::Func of_row{"of_row"};  // (d, row)
    TransposedTiles squares{"squares"};
    Halide::RDom over_rows;                           // row, chunk
    Halide::Func largest_of_lane{"largest_of_lane"};  // (c)
    Halide::Func chunks{"chunks"}, lanes{"lanes"}, largest{"largest"};

    // vector: floats of one.
    BackwardRowsKernel(ElementType type, int vector);

    Halide::Pipeline pipeline() const { return Halide::Pipeline({chunks, lanes, largest}); }
};

struct BackwardStoreKernel : BackwardStoreArguments {
    Halide::Var d{"d"}, row{"row"};
    Halide::Func out{"out"};

    explicit BackwardStoreKernel(ElementType type);

    Halide::Pipeline pipeline() const { return Halide::Pipeline(out); }
};

struct BackwardBiasKernel : BackwardBiasArguments {
    Halide::Var j{"j"}, i{"i"};
    Halide::Func sum{"sum"}, dbias{"dbias"};  // (j, i)

    BackwardBiasKernel();

    Halide::Pipeline pipeline() const { return Halide::Pipeline(dbias); }
};

struct BackwardSinksKernel : BackwardSinksArguments {
    Halide::Var u{"u"};
    Halide::Func sum{"sum"}, dsink{"dsink"};  // double, (u)

    BackwardSinksKernel();

    Halide::Pipeline pipeline() const { return Halide::Pipeline(dsink); }
};

}  // namespace heed
