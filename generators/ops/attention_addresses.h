#pragma once
// The arguments of an attention kernel as device code reads them: tensors at addresses, strides in bytes.

#include "generators/attention/kernel.h"
#include "generators/common/device_memory.h"

namespace heed {

// Scalars, masks, biases and slopes are named as in HEED_CUDA_ATTENTION_PROBS, for DeviceScores.
struct AttentionAddresses {
    using Expr = Halide::Expr;
    // (d, head, token, batch), of scales (head, token, batch).
    struct Tensor {
        Expr first, head, token, batch;

        Expr row(const Expr &in_batch, const Expr &of_head, const Expr &of_token) const {
            return after(after(after(first, in_batch, batch), of_head, head), of_token, token);
        }
        // Whether rows begin at multiples of 16 bytes.
        Expr in_chunks() const { return begins_at_multiples(16); }
        Expr begins_at_multiples(int bytes) const {  // a power of 2
            return ((first | head | token | batch) & Halide::cast<uint64_t>(bytes - 1)) == 0;
        }
    };

    const AttentionConfig config;
    AttentionArguments args;
    const ArgumentTypes types;
    Tensor q, k, v, k_scale, v_scale, out, lse, states;
    Expr num_heads, num_kv_heads, head_dim, head_dim_v, max_q_len, max_kv_len, uniform_q_len;
    Expr visible_begin, visible_end, position_offset, page_size, table_pages, num_pages;
    HEED_LOGIT_VALUES(HEED_EXPR_MEMBER)
    Expr tasks, page_table, page_table_row, sink, sink_head, alibi_slopes, slope_head, device_status;
    Expr mask, mask_batch, mask_head, mask_row, mask_key, bias, bias_batch, bias_head, bias_row, bias_key;
    Halide::Var down{"down"};    // the block of rows of a stage
    ScoreBuffers score_buffers;  // for stages of a block

    explicit AttentionAddresses(const AttentionConfig &config);

protected:
    // Buffers may have any strides.
    void set_outputs(Halide::Func outputs);
};

}  // namespace heed
