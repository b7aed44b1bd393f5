// One run of a CUDA kernel on the emulated device, in a process of its own: a fault leaves no device.
#pragma once

#include <string>

#include "tests/support/make_attention.h"

namespace heed_test {

// Occurrence n of `from` in the kernel's PTX is replaced. "": nothing is.
struct Mutation {
    std::string from, to;
    int occurrence = 0;
};

enum class Outcome {
    correct,        // within the bounds of the oracle, nothing touched that should not be
    fault,          // the device stopped it
    wrong,          // results out of bounds
    no_occurrence,  // there are not so many
};

// `device_options` as heed_device_configure takes them. Prints what the run said where it is not `quiet`.
Outcome run_in_child(const std::string &kernel, const Mutation &mutation, bool tiny, const std::string &device_options,
                     bool quiet);

// A kernel's own shape, causal. Tiny: two keys (the stride of one is 0), so that every copy of a block must stop short.
// Else every warp of a block has queries, there are keys of several blocks, of the last only one, and one head has a
// NaN in V that half of the rows must not see: it needs the pass key by key.
Attention mutation_case(const std::string &kernel, bool tiny);

}  // namespace heed_test
