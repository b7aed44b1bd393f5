#pragma once
// Buffers of users' score functions at addresses.

#include "generators/common/device_memory.h"
#include "generators/lowering/carried.h"
#include "heed/user_score.h"

namespace heed {

struct ScoreWords {
    Halide::Expr first, size;  // an address, words of 32 bits
};

// Those of `all` that the function declares, for stages of a block, `block`: an element that every block reads is not
// read on the host.
inline ScoreBuffers device_score_buffers(const std::vector<ScoreWords> &all, const ScoreMod &mod,
                                         const Halide::Expr &block) {
    std::vector<ScoreBuffers::Buffer> buffers;
    for (size_t n = 0; n < mod.buffers.size(); n++) {
        const Halide::Expr first = all[n].first;
        const auto bits = [=](const Halide::Expr &index) {
            return load_at(Halide::Int(32), first, once(index, block));
        };
        buffers.push_back({bits, all[n].size, mod.buffers[n]});
    }
    return ScoreBuffers(buffers);
}

}  // namespace heed
