// Problems that the gradients are tested on: one for each feature, and all of them at once.
#pragma once

#include <string>
#include <vector>

#include "tests/support/make_attention.h"

namespace heed_test {

struct BackwardCase {
    std::string name;
    void (*apply)(Attention *a);
    bool on_cuda = true;
};

const std::vector<BackwardCase> &backward_cases();

// For the case `name`; the bias is f32.
Attention backward_attention(const Shape &shape, const std::string &name, heed_dtype dtype = HEED_F32);

// N(0,1) in the type, indexed as out.
std::vector<float> random_dout(const Attention &a, uint64_t seed = 77);

// Every index takes a value apart from every other.
constexpr Shape small_backward_shape = {2, 4, 2, 3, 5, 3, 2};

}  // namespace heed_test
