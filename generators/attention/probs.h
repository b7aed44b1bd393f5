#pragma once
// Attention scores or probabilities of some queries of a head, for looking into a model: what heed_attention_probs
// writes. The products q . k come from a kernel of attention_scores.

#include "generators/attention/logits.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/operations.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(AttentionProbsArguments, HEED_ATTENTION_PROBS)

struct AttentionProbsKernel : AttentionProbsArguments {
    Halide::Var j{"j"}, i{"i"}, u{"u"};
    Halide::RDom over_blocks, over_lanes;  // of `lanes` keys; in a block
    Halide::Func scores{"scores"};         // (j, i): by mode; from masked_scores on minus infinity where not visible
    Halide::Func lane_max{"lane_max"};     // (u, i): of every lanes-th visible score
    Halide::Func row_max{"row_max"};       // (i)
    Halide::Func weights{"weights"};       // (j, i): relative to it
    Halide::Func lane_sum{"lane_sum"};     // (u, i): of every lanes-th weight
    Halide::Func row_sum{"row_sum"};       // (i): without the sink
    Halide::Func factor{"factor"};         // (i): of the weights
    Halide::Func probs{"probs"};           // (j, i)
    Halide::Func probs_16{"probs_16"};     // (j, i): in dtype, where that is not f32

    // `lanes`: partial maxima and sums of a row.
    AttentionProbsKernel(ElementType dtype, int lanes);

    Halide::Pipeline pipeline() const;
    // Without probs_16 in f32.
    std::vector<OutputType> output_types() const;

    // What most calls are: conditions on which loads and arithmetic of the scores fall away.
    Halide::Expr is_plain() const, has_mask_only() const, has_bias_only() const;

private:
    Halide::Expr keeps_logits() const;  // no cap, no ALiBi
    void state_buffer_contract();
};

}  // namespace heed
