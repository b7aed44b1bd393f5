#pragma once
// The speed parameters of an attention kernel of the CPU: what its schedule chooses by itself and an argument
// name=value of heed_generate, a tuner's, may override. They change sums by rounding only.

#include <string>
#include <vector>

#include "generators/attention/config.h"
#include "generators/driver/options.h"

namespace heed {

struct Parameter {
    const char *name;
    int AttentionConfig::*value;
    std::vector<int> values;  // the allowed ones; empty: multiples of the named parameter's value
    const char *multiple_of;
    int AttentionConfig::*unit;
    int most_factor;
};

// Those that mean something in this kernel; one that others are multiples of comes before them.
std::vector<Parameter> parameters_of(const AttentionConfig &config);

// Throws BadInput for a value that is not allowed; which values go together is for config.block_error() to say.
void read_parameters(Options &options, AttentionConfig &config);

// {"NAME": {"default": N, "values": [N, ..]}, "NAME": {"default": N, "multiple_of": NAME, "most_factor": N}, ..}
std::string describe_parameters(const AttentionConfig &config);

}  // namespace heed
