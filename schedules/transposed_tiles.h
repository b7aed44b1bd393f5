#pragma once

#include "generators/attention/transposed_tiles.h"

namespace heed {

// The steps of a square in registers, at a loop of the Func that reads it: whole vectors are loaded, pairs shuffled.
inline void schedule_square(TransposedTiles &tiles, Halide::Func &consumer, const Halide::Var &level, int lanes) {
    for (size_t n = 0; n < tiles.steps.size(); n++) {
        Halide::Func &step = tiles.steps[n];
        const std::vector<Halide::Var> args = step.args();
        for (size_t axis = 0; axis < args.size(); axis++) step.bound_extent(args[axis], axis == 0 ? lanes * lanes : 1);
        step.compute_at(consumer, level)
            .store_in(Halide::MemoryType::Register)
            .vectorize(args[0], n == 0 ? lanes : 2 * lanes)
            .unroll(args[0]);
    }
}

}  // namespace heed
