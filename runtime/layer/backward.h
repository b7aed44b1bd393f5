// One backward call of a layer: the activations of the forward, computed anew, and the gradients on their way back. All
// is found first and added to the caller's tensors last, so that a call that fails has written nothing.
#pragma once

#include "layer/forward.h"
#include "ops/linear_backward.h"

namespace heed {

// x with the projections that read it, or memory with its own: [rows, dim_in] -> [rows, dim_out].
struct ProjectedSource {
    LinearRows size = {};
    const void *data = nullptr;  // the caller's rows, or `copy`
    HeapArray<char> copy;        // with zeros where the call hides rows
    HeapArray<char> dy;          // gradients of the projections, side by side: of q, k and v, as far as they read it
    HeapArray<char> dx, dweight;
};

struct Backward {
    Forward &f;
    const LayerRun &run;
    const heed_layer_gradients &g;
    ProjectedSource x = {}, memory = {};  // self attention: x alone
    const void *dy = nullptr;             // the caller's, or dy_copy
    HeapArray<char> dy_copy = {};
    HeapArray<char> q_projected = {}, k_projected = {};  // as projected, where a norm or clipping follows
    HeapArray<char> dattention = {}, dwo = {}, dq = {}, dk = {}, dv = {}, dbias = {};
    HeapArray<float> lse = {}, dsink = {};
    HeapArray<float> dq_norm_weight = {}, dq_norm_bias = {}, dk_norm_weight = {}, dk_norm_bias = {};

    const heed_layer_config &config() const { return f.config(); }
    bool cross() const { return config().cross; }
    GradientRun gradient_run() const { return {run.name, config().dtype, run.execution}; }
    int64_t rows() const { return int64_t{f.a.batch} * f.a.q_len; }
    int64_t key_rows() const { return int64_t{f.a.batch} * f.sizes.new_tokens; }
};

// ---- backward_checks.cpp

// The gradient tensors, and what layers have no gradients of.
heed_status check_gradients(const Forward &f, const heed_layer_gradients &g);

// x, memory and dy with zeros for what q_lens, kv_lens and key_padding hide: it may be NaN.
heed_status take_sources(Backward *b);

// ---- backward_attention.cpp

// The forward again, up to attention and its lse.
heed_status recompute(Backward *b);

// dattention and dwo.
heed_status output_gradients(Backward *b);

// dq, dk, dv, dbias, dsink of attention's inputs.
heed_status attention_gradients(Backward *b);

// ---- backward_projections.cpp

// dq, dk and dv through RoPE, norm and clipping back to the projections' outputs.
heed_status head_gradients(Backward *b);

// dx and dweight of a source.
heed_status source_gradients(Backward *b, ProjectedSource *source);

// Everything into the caller's tensors.
heed_status add_gradients(Backward *b);

// ---- backward_norm.cpp

// Layer norm of x [rows, length]: dy becomes dx; dweight and dbias [length] are written.
struct NormGradient {
    const void *x;
    void *dy;
    int64_t rows;
    int32_t length;
    const float *weight;
    float epsilon;
    float *dweight, *dbias;
};
heed_status norm_gradients(const GradientRun &run, const NormGradient &n);

}  // namespace heed
