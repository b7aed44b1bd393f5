#pragma once
// Lowering pass, after SumInPlace: sums of products are not cleared before the first product.
//
//   produce state { for x: state[x] = first[x]; .. }
//
// becomes
//
//   started = 0
//   produce state { for x before sums: state[x] = first[x]; ..; if started is 0: for other x: state[x] = first[x] }
//
// The products, which LowerBf16Tiles and PipelineTiles make, start from the zeros of `started` where it holds them, and
// then set it. What scales the sums by rows must leave them alone where no product was added yet.

#include <string>
#include <utility>

#include "Halide.h"

namespace heed {

// Where products that are added to `sums` find whether these hold something: a row of a tile, zeros until then.
struct StartedSums {
    std::string sums, started;
};

// Whether the sums do.
Halide::Expr hold_something(const std::string &started);

class StartSums : public Halide::Internal::IRMutator {
public:
    // The first `kept` iterations of the loop that initialises sums.sums are no sums of products. goes_on: whether the
    // sums hold something from the beginning.
    StartSums(StartedSums sums, int kept, Halide::Expr goes_on)
        : names(std::move(sums)), kept(kept), goes_on(std::move(goes_on)) {}

    int found = 0;

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override;

private:
    const StartedSums names;
    const int kept;
    const Halide::Expr goes_on;
};

}  // namespace heed
