#pragma once
// Lowering pass, after LowerBf16Tiles: weights of the keys of a block, made while tiles multiply the next keys.
//
//   for step { product; maxima; reference; .., weights; ..; outputs += weights x values; sums of the weights; .. }
//
// The weights wait for the maxima of the whole block, whose products leave the L1 cache meanwhile, and the unit of the
// tiles waits for the weights. But maxima seldom move the reference:
//
//   for step {
//     largest = not known
//     if every row has a reference { product beside weights by the reference of the step before; largest weight }
//     else product
//     if a weight is too large or not known { maxima; reference; .., weights }
//     ..; outputs += weights x values beside sums of the weights; ..
//   }
//
// Results have the bits of the loop before. Measured, Xeon with AMX, 32 rows and 128 keys of 128 elements: 6200 -> 4250
// cycles. A Halide stage cannot be computed in one of two ways, nor beside another one.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

// Comes after a step of the tiles of the stages that LowerBf16Tiles marks: step `number` of all, `of_keys` of which go
// by before the next rows of the tiles.
Halide::Internal::Stmt tile_step(const Halide::Expr &number, int of_keys);

class WeaveTiles : public Halide::Internal::IRMutator {
public:
    // A loop over blocks of keys, and stages in it.
    struct Step {
        std::string loop, product, maxima;
        std::string reference, state;  // of float; in the latter the reference of the step before
        std::string again_end;         // an int that is 0 where nothing is done again after the weights
        std::string weights;           // pairs of bf16
        std::string outputs, sums, exact_sum;
        int rows;
        int32_t huge_reference;  // bits of a float that is no reference to keep
        uint16_t large_weight;   // bits of a bf16 above which a weight moves the reference
    };
    explicit WeaveTiles(Step step) : names(std::move(step)) {}

    int found = 0;

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    const Step names;
};

}  // namespace heed
