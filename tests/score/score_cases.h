// Problems whose score functions say what a mask, a bias or a softcap says too.
#pragma once

#include <functional>
#include <vector>

#include "tests/support/make_attention.h"

namespace heed_test {

using Visible = std::function<bool(int32_t b, int32_t h, int32_t i, int64_t p, int32_t j)>;

// A problem as the oracle sees it, and the words that the score function reads instead of mask, bias and softcap.
struct ScoreCase {
    Attention a;
    std::vector<int32_t> words[HEED_MAX_SCORE_BUFFERS];
    heed_dtype type = HEED_I32;

    void see(const Visible &visible);
    // Makes the words, and of `a`, which has no mask and no bias, what they say.
    void make(const char *score_mod, Rng *rng);
    void set_buffers(heed_args *args) const;
};

}  // namespace heed_test
