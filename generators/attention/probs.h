#pragma once
// Attention scores or probabilities of one query row, for looking into a model: what heed_attention_probs writes.

#include "generators/attention/kv_source.h"
#include "generators/attention/logits.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/operation_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(AttentionProbsArguments, HEED_ATTENTION_PROBS)

struct AttentionProbsKernel : AttentionProbsArguments {
    Halide::Var j{"j"}, u{"u"};
    Halide::RDom over_d, over_keys;
    Halide::Func dot{"dot"};            // (j): q . k
    Halide::Func scores{"scores"};      // (j): by mode; from masked_scores on minus infinity where not visible
    Halide::Func row_max{"row_max"};    // (): of the visible scores
    Halide::Func row_sum{"row_sum"};    // (): relative to it, without the sink
    Halide::Func probs{"probs"};        // (j)
    Halide::Func probs_16{"probs_16"};  // (j): in dtype, where that is not f32

    AttentionProbsKernel(ElementType dtype, ElementType kv_dtype);

    Halide::Pipeline pipeline() const;
    // Without probs_16 in f32.
    std::vector<OutputType> output_types() const;

private:
    Halide::Expr score() const;
    void state_buffer_contract();
};

}  // namespace heed
