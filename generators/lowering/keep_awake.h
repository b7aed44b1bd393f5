#pragma once
// Lowering pass: products of tiles (AMX) that keep their unit awake.
//
// The unit sleeps after 0.5 us without a product (TDPBF16PS; loads of tiles do not count), and the next one waits for
// 0.23 us until it is awake: 1,200 to 1,400 and 600 ticks of a clock of 2.6 GHz, measured on a Xeon with AMX (family 6
// model 167). Rows that are transposed and rounded between the products of two tasks take longer. A product of zeros
// takes four instructions, and 16 cycles of the unit: a few of them are enough.

#include <string>
#include <utility>
#include <vector>

#include "Halide.h"

namespace heed {

class KeepAwake : public Halide::Internal::IRMutator {
public:
    struct Loop {
        std::string name;
        int every;  // one product in so many iterations
    };
    explicit KeepAwake(std::vector<Loop> loops) : loops(std::move(loops)) {}

    int found = 0;

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    const std::vector<Loop> loops;
};

}  // namespace heed
