// One backward call of a layer: the activations of the forward, computed anew, and the gradients on their way back. All
// is found first and added to the caller's tensors last, so that a call that fails has written nothing.
#pragma once

#include "runtime/layer/forward.h"
#include "runtime/layer/gradient_memory.h"
#include "runtime/ops/steps.h"

namespace heed {

// x with the projections that read it, or context with its own: [rows, dim_in] -> [rows, dim_out].
struct ProjectedSource {
    LinearRows size = {};
    const void *data = nullptr;  // the caller's rows, or the copy
    SourceMemory m = {};
};

struct Backward {
    Forward &f;
    const LayerRun &run;
    const heed_layer_gradients &g;
    GradientMemory m = {};
    ProjectedSource x = {}, context = {};  // self attention: x alone
    const void *dy = nullptr;              // the caller's, or the copy
    View dbias = {};                       // span 0: not wanted

    const heed_layer_config &config() const { return f.config(); }
    bool cross() const { return config().cross; }
    StepRun step_run() const { return {run.name, config().dtype, run.execution, m.scratch}; }
    // The type of the sums of dwo and the projections' gradients: f32 where one of the caller's tensors is.
    heed_dtype dweight_dtype() const;
    int64_t rows() const { return int64_t{f.a.batch} * f.a.q_len; }
    int64_t key_rows() const { return int64_t{f.a.batch} * f.sizes.new_tokens; }
};

// ---- backward_checks.cpp

// The gradient tensors, and what layers have no gradients of; on CUDA the workspace, with the memory of dbias.
heed_status check_gradients(Backward *b);

GradientWants wants_of(const Backward &b);

// ---- backward_sources.cpp

// x, context and dy with zeros for what q_lens, kv_lens and key_padding hide: it may be NaN.
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

// ---- backward_sums.cpp

// Everything into the caller's tensors.
heed_status add_gradients(Backward *b);

}  // namespace heed
