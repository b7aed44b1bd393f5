#pragma once
// Lowering pass, after LowerBf16Tiles: the weights of keys are made while tiles multiply the next keys.
//
//   for step { product; maxima; reference; ..; weights; ..; outputs += weights x values; sums of the weights; .. }
//
// Weights wait for the maxima of the whole block, whose products meanwhile leave the L1 cache, and tiles wait for the
// weights. But a maximum seldom moves the reference. So the weights are first made by the reference of the step before,
// which is right unless one of them is too large:
//
//   for step {
//     largest = more than any
//     if every row has a reference { product beside weights by it; largest = that of the weights }
//     if largest is too large { product; maxima; reference; ..; weights }
//     ..; outputs += weights x values, beside the sums of the weights; ..
//   }
//
// Results have the bits of the first loop. Measured alone, Xeon with AMX, 32 rows x 128 keys of 128 elements: 6200 ->
// 4250 cycles. In Halide a stage has one definition, and its loops do not mix with those of another one.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

// A step of the tiles of a stage that LowerBf16Tiles marks: its row of tiles, its number in this row, how many a row
// has, and how many rows there are. Where the step has been, follows tile_step().
struct TileStep {
    Halide::Expr row, number, of_row, rows;
};
Halide::Internal::Stmt tile_step(const TileStep &step);

class WeaveTiles : public Halide::Internal::IRMutator {
public:
    // A loop over blocks of keys, and stages in it.
    struct Step {
        std::string loop, product, maxima;
        std::string reference, state;  // of float; in the latter the reference of the step before
        std::string again_end;         // an int: how many weights are made again, from exact differences
        std::string weights;           // pairs of bf16
        std::string outputs, sums;
        std::string exact_sum;   // reads the product again, if its loop is not empty
        Halide::Expr may_keep;   // without which the reference before is of no use
        int folded_product;      // elements of two rows of tiles of the product
        int32_t huge_reference;  // bits of the least float that is no reference to keep
        uint16_t large_weight;   // bits of the least bf16 whose weight may move the reference
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
