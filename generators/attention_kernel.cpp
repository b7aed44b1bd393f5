#include "attention_kernel.h"

namespace heed {

using namespace Halide;

namespace {

template <typename Buffer>
void dense_rows(Buffer buffer, int row_length) {
    if (row_length > 0) {
        buffer.dim(0).set_bounds(0, row_length);
    }
    for (int i = 0; i < buffer.dimensions(); i++) {
        buffer.dim(i).set_min(0);
    }
}

// Mask and bias may be broadcast along any axis, so no stride is fixed.
void any_strides(ImageParam param) {
    param.dim(0).set_stride(Expr());
    for (int i = 0; i < param.dimensions(); i++) {
        param.dim(i).set_min(0);
    }
}

}  // namespace

AttentionKernel::AttentionKernel(const AttentionConfig &cfg) : config(cfg), stages(cfg) {
    AttentionInputs in;
    in.q = q;
    in.mask = mask;
    in.bias = bias;
    in.seq = seq;
    in.k = {k, k.dim(2).extent()};
    in.v = {v, v.dim(2).extent()};
    in.scale = scale;
    in.split_len = split_len;
    in.num_splits = num_splits;
    in.mask_true_hides = mask_true_hides;
    in.batch = q.dim(3).extent();
    in.num_heads = q.dim(1).extent();
    in.num_kv_heads = k.dim(1).extent();
    in.q_len = q.dim(2).extent();
    in.head_dim = q.dim(0).extent();
    in.head_dim_v = v.dim(0).extent();
    build_attention(config, in, stages);
    state_buffer_contract();
}

void AttentionKernel::state_buffer_contract() {
    std::vector<OutputImageParam> outputs = stages.out.output_buffers();
    OutputImageParam out = outputs[0], lse = outputs[1];
    dense_rows(q, config.head_dim);
    dense_rows(k, config.head_dim);
    dense_rows(v, config.head_dim_v);
    dense_rows(out, config.head_dim_v);
    lse.dim(0).set_stride(0);
    any_strides(mask);
    any_strides(bias);
    seq.dim(0).set_bounds(0, 4);
    seq.dim(1).set_bounds(0, q.dim(3).extent());

    // One extent per meaning: q_len, num_heads, batch and the number of kv heads and of key positions.
    k.dim(3).set_extent(q.dim(3).extent());
    for (int i = 1; i < 4; i++) {
        v.dim(i).set_extent(k.dim(i).extent());
        out.dim(i).set_min(0).set_extent(q.dim(i).extent());
    }
}

std::vector<Argument> AttentionKernel::arguments() const {
    return {q, k, v, mask, bias, seq, scale, split_len, num_splits, mask_true_hides};
}

Pipeline AttentionKernel::pipeline() const { return Pipeline(stages.out); }

}  // namespace heed
