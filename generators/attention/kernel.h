#pragma once
// The interface of an attention kernel: its arguments, and what they are around the algorithm.

#include <string>
#include <vector>

#include "generators/attention/stages.h"
#include "generators/common/kernel_arguments.h"

namespace heed {

// The buffers of a score function come after all other inputs.
struct AttentionArguments {
    const ArgumentTypes types;
    HEED_ATTENTION(HEED_IMAGE_MEMBER, HEED_PARAM_MEMBER, HEED_IGNORE)
    std::vector<Halide::ImageParam> score_buffers;  // int32 words, flat: as many as the user's score function declares

    explicit AttentionArguments(const AttentionConfig &config);

    std::vector<Halide::Argument> arguments() const;
    std::vector<OutputType> output_types() const;

protected:
    ScoreBuffers own_score_buffers(const std::vector<ScoreElement> &elements) const;
};

struct AttentionKernel : AttentionArguments {
    AttentionConfig config;

    // Output: out (head_dim_v, num_heads, token, batch), and lse of the same shape with stride 0 along head_dim_v.
    AttentionStages stages;

    explicit AttentionKernel(const AttentionConfig &config);

    Halide::Pipeline pipeline() const;

private:
    AttentionInputs inputs() const;
    void state_buffer_contract();
};

}  // namespace heed
