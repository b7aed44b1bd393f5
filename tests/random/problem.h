// A problem drawn at random, in few words: data, tensors and call follow from them. What a shrinker can make smaller.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tests/support/call.h"
#include "tests/support/table_kernels.h"

namespace heed_test {

struct RandomProblem {
    // All that is not data; mask, bias, sink and slopes are drawn where they are wanted.
    Attention settings;
    CallOptions options;  // kernel "": the plan chooses
    Data data = Data::normal;
    uint64_t data_seed = 1;
    bool mask = false, bias = false, sink = false, alibi = false, temperature = false;
    std::array<int32_t, 4> mask_axes = {}, bias_axes = {};  // 1: broadcast, 0: full
    double mask_density = 0.5;                              // of keys that a mask lets see
    double hiding_bias = 0;                                 // of elements of the bias that are -inf
    bool poison = false;                                    // keys and values that no row sees are NaN
    bool shared_kv = false;                          // all sequences have the keys of the first one, by a stride of 0
    bool padded_lse = false, padded_scores = false;  // strides of lse, mask and bias with gaps
    bool zero_strides = false;                       // mask and bias are of the full shape, broadcast by strides of 0
    int32_t max_threads = 1;  // of the plan; options.num_threads at most, or 0: the plan's default
};

// Draws from all that the API allows for problems of moderate size. Most problems suit one of `kernels`, which then
// runs by its name or by the plan's choice; the rest is drawn freely. The same for the same kernels on every machine.
RandomProblem draw_problem(uint64_t seed, const std::vector<TableKernel> &kernels);

// The problem's data.
Attention attention_of(const RandomProblem &problem);

// What CallOptions does not say about the call.
void set_problem(const RandomProblem &problem, heed_problem *p);

std::string describe(const RandomProblem &problem);

}  // namespace heed_test
