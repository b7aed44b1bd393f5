#pragma once
// The interface of an attention kernel: its arguments, in the order of the runtime's kernel.h, around the algorithm.

#include <string>
#include <vector>

#include "attention_stages.h"

namespace heed {

struct AttentionKernel {
    AttentionConfig config;

    // Dimensions innermost first; every innermost stride is 1 and every min 0.
    Halide::ImageParam q{Halide::Float(32), 4, "q"};        // (head_dim, num_heads, q_len, batch)
    Halide::ImageParam k{Halide::Float(32), 4, "k"};        // (head_dim, num_kv_heads, capacity, batch)
    Halide::ImageParam v{Halide::Float(32), 4, "v"};        // (head_dim_v, num_kv_heads, capacity, batch)
    Halide::ImageParam mask{Halide::UInt(8), 4, "mask"};    // (capacity, q_len, num_heads, batch), any strides, 0 too
    Halide::ImageParam bias{Halide::Float(32), 4, "bias"};  // as mask
    Halide::ImageParam seq{Halide::Int(32), 2,
                           "seq"};  // (4, batch): kv_len, visible_begin, visible_end, position_offset
    Halide::Param<float> scale{"scale"};
    Halide::Param<int32_t> split_len{"split_len"};    // decode: keys of a split
    Halide::Param<int32_t> num_splits{"num_splits"};  // decode
    Halide::Param<uint8_t> mask_true_hides{"mask_true_hides"};

    // Output: out (head_dim_v, num_heads, q_len, batch), and lse of the same shape with stride 0 along head_dim_v.
    AttentionStages stages;

    explicit AttentionKernel(const AttentionConfig &config);

    std::vector<Halide::Argument> arguments() const;
    Halide::Pipeline pipeline() const;

private:
    void state_buffer_contract();
};

}  // namespace heed
