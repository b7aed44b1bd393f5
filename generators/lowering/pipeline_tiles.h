#pragma once
// Lowering pass, before LowerBf16Tiles: the tiles of both products of attention, and the weights between them, at once.
//
//   for step { product; maxima; reference; ..; weights; ..; outputs += weights x values; sums of the weights; .. }
//
// Weights wait for the maxima of the whole block, and tiles wait for the weights. But a maximum seldom moves the
// reference. So the weights are first made by the reference of the step before, which is right unless one of them is
// too large. Meanwhile tiles multiply the next keys, and the weights and values of the step before:
//
//   product of the first keys
//   for step {
//     where a row has no reference, that of the maxima of the first keys
//     largest = more than any
//     if every row has a reference {
//       for the keys of a row of tiles {
//         product of the next keys, outputs of the step before; after each tile some weights of these keys, and sums,
//         where the call wants them exact ones too; in the first step lines of rows are asked for
//       }
//       largest = that of the weights
//     } else { outputs of the step before }
//     if largest is too large { product; maxima; reference; ..; weights; both sums of the weights }
//     outputs scaled to the reference; ..
//   }
//   outputs of the last step
//
// Where logits are more than the product, the first loop makes them where it reads them; by maxima their stage stores
// them. A step whose values have NaN or infinities multiplies its outputs at its own end.
//
// A row of tiles of the product is stored while the first products of the next tiles are computed, and it is read
// later: vectors cannot be loaded from tiles that are still being stored. Two rows of tiles of the product and the
// weights of two steps are kept. The weights are those of the first loop, except where they are relative to another
// reference.

#include <string>
#include <utility>
#include <vector>

#include "Halide.h"
#include "generators/lowering/row_lines.h"
#include "generators/lowering/start_sums.h"

namespace heed {

class PipelineTiles : public Halide::Internal::IRMutator {
public:
    // A loop over blocks of keys, and stages in it.
    struct Step {
        std::string loop, first_key, product;
        std::string logits;  // what maxima and weights read, if it is not the product
        std::string maxima;
        std::string reference;  // .0: a float for each row
        std::string weights;    // pairs of bf16
        std::string outputs, sums;
        std::string nonfinite_end;   // empty, or of a step whose outputs are made at its end, from another operand
        StartedSums started;         // of the outputs
        std::string exact_sum;       // of weights that are not rounded; no key where the call does not want it
        std::vector<RowLines> asks;  // rows that are needed after the loop: its first step asks for them
        Halide::Expr may_keep;       // without which the reference before is of no use
        int32_t huge_reference;      // bits of the least float that is no reference to keep
        uint16_t large_weight;       // bits of the least bf16 whose weight may move the reference
    };
    explicit PipelineTiles(Step step) : names(std::move(step)) {}

    int found = 0;

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    const Step names;
};

}  // namespace heed
