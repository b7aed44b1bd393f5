#pragma once
// Attention scores or probabilities of one query row, for looking into a model: what heed_attention_probs writes.

#include "kv_source.h"
#include "score_mod.h"

namespace heed {

// heed_probs_mode.
enum ProbsMode { raw_scores, soft_capped_scores, masked_scores, probabilities };

struct AttentionProbsKernel {
    ElementType dtype, kv_dtype;
    Halide::ImageParam q;                                         // (d)
    Halide::ImageParam k;                                         // (d, slot, page)
    Halide::ImageParam k_scale{Halide::Float(32), 2, "k_scale"};  // (slot, page)
    Halide::ImageParam mask{Halide::UInt(8), 1, "mask"};          // (j), any stride, and the next two
    Halide::ImageParam bias{Halide::Float(32), 1, "bias"};
    Halide::ImageParam bias_16{Halide::UInt(16), 1, "bias_16"};
    Halide::ImageParam page_table{Halide::Int(32), 1, "page_table"};  // (page in sequence)
    Halide::Param<int32_t> kv_len{"kv_len"}, kv_batch{"kv_batch"}, first_key{"first_key"}, page_size{"page_size"};
    Halide::Param<int32_t> begin{"begin"}, end{"end"};  // the row sees keys in [begin, end), mask and bias apart
    Halide::Param<int32_t> row{"row"}, position_offset{"position_offset"}, mode{"mode"}, mask_form{"mask_form"},
        bias_form{"bias_form"}, alibi_symmetric{"alibi_symmetric"};
    Halide::Param<float> scale{"scale"}, softcap{"softcap"}, slope{"slope"}, sink{"sink"};

    Halide::Var j{"j"}, u{"u"};
    Halide::RDom over_d, over_keys;
    Halide::Func dot{"dot"};            // (j): q . k
    Halide::Func scores{"scores"};      // (j): by mode; from masked_scores on minus infinity where not visible
    Halide::Func row_max{"row_max"};    // (): of the visible scores
    Halide::Func row_sum{"row_sum"};    // (): relative to it, without the sink
    Halide::Func probs{"probs"};        // (j)
    Halide::Func probs_16{"probs_16"};  // (j): in dtype, where that is not f32

    AttentionProbsKernel(ElementType dtype, ElementType kv_dtype);

    std::vector<Halide::Argument> arguments() const;
    Halide::Pipeline pipeline() const;

private:
    Halide::Expr score() const;
    void state_buffer_contract();
};

}  // namespace heed
