#pragma once
// The interface of an attention kernel: its arguments, in the order of the runtime's kernel.h, and around the
// algorithm.

#include <string>
#include <vector>

#include "attention_stages.h"

namespace heed {

struct AttentionArguments {
    // Dimensions innermost first; every innermost stride is 1 and every min 0. What a problem does not use is a dummy
    // that any index reaches.
    Halide::ImageParam q;                                   // (head_dim, num_heads, token, batch)
    Halide::ImageParam k;                                   // (head_dim, num_kv_heads, slot, page)
    Halide::ImageParam v;                                   // (head_dim_v, num_kv_heads, slot, page)
    Halide::ImageParam k_scale, v_scale;                    // (num_kv_heads, slot, page)
    Halide::ImageParam mask{Halide::UInt(8), 4, "mask"};    // (max_kv_len, max_q_len, num_heads, batch), any strides
    Halide::ImageParam bias{Halide::Float(32), 4, "bias"};  // as mask
    Halide::ImageParam bias_16{Halide::UInt(16), 4, "bias_16"};       // as mask, in the dtype of q
    Halide::ImageParam sink{Halide::Float(32), 1, "sink"};            // (num_heads), any stride
    Halide::ImageParam alibi_slopes{Halide::Float(32), 1, "alibi"};   // (num_heads), any stride
    Halide::ImageParam page_table{Halide::Int(32), 2, "page_table"};  // (max_pages_per_seq, batch)
    Halide::ImageParam tasks{Halide::Int(32), 2, "tasks"};            // (TaskField::count, num_tasks)
    Halide::Param<int32_t> batch{"batch"}, max_q_len{"max_q_len"}, max_kv_len{"max_kv_len"};
    Halide::Param<float> scale{"scale"}, softcap{"softcap"};
    Halide::Param<int32_t> split_len{"split_len"}, num_splits{"num_splits"};  // decode: keys of a split
    Halide::Param<int32_t> page_size{"page_size"};                            // 0: storage is strided
    Halide::Param<int32_t> mask_form{"mask_form"}, bias_form{"bias_form"};    // MaskForm, BiasForm
    Halide::Param<uint8_t> alibi_symmetric{"alibi_symmetric"};
    Halide::Param<uint64_t> dropout_seed{"dropout_seed"}, dropout_offset{"dropout_offset"},
        dropout_threshold{"dropout_threshold"};
    Halide::Param<float> dropout_scale{"dropout_scale"};
    Halide::Param<int32_t> uniform{"uniform"}, visible_begin{"visible_begin"}, visible_end{"visible_end"},
        position_offset{"position_offset"};  // CUDA rows, and the next two
    Halide::Param<uint64_t> device_status{"device_status"};
    Halide::ImageParam states{Halide::Float(32), 4, "states"};
    std::vector<Halide::ImageParam> score_buffers;  // int32 words, flat: as many as the user's score function declares

    explicit AttentionArguments(const AttentionConfig &config);

    std::vector<Halide::Argument> arguments() const;

protected:
    ScoreBuffers own_score_buffers(const std::vector<ScoreElement> &elements) const;
};

struct AttentionKernel : AttentionArguments {
    AttentionConfig config;

    // Output: out (head_dim_v, num_heads, token, batch), and lse of the same shape with stride 0 along head_dim_v.
    AttentionStages stages;

    explicit AttentionKernel(const AttentionConfig &config);

    Halide::Pipeline pipeline() const;
    Halide::Expr prefetched_keys() const;  // how far ahead; 0 where keys stand in pages, whose order in memory is free

private:
    AttentionInputs inputs() const;
    void state_buffer_contract();
};

}  // namespace heed
