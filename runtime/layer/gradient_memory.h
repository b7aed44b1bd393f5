// Where the gradients of a backward call are on their way back: in one block, of the heap or, on CUDA, of the
// workspace.
#pragma once

#include "runtime/layer/layer.h"
#include "runtime/ops/steps.h"

namespace heed {

// x or context: its copy with zeros in the place of rows that the call hides, the gradients of its projections side by
// side, and its own.
struct SourceMemory {
    char *copy, *dy, *dx, *dweight;
};

struct GradientMemory {
    SourceMemory x, context;
    char *dy;                         // a copy as those of the sources
    char *q_projected, *k_projected;  // as projected, where a norm or clipping follows
    char *dattention, *dwo, *dbias;   // of attention's output, of the projection after it, of the bias
    char *dq, *dk, *dv;               // of attention's inputs, then of the projections' outputs
    float *lse, *dsink;
    NormMemory q_norm, k_norm;
    char *weight;     // of the projections of a source, row-major, one after the other
    float *products;  // CUDA: scratch of the gradients of norms
    char *scratch;    // StepRun::scratch
    char *attention;  // workspace of heed_attention_backward
};

// What a call asks for beyond what every call needs.
struct GradientWants {
    bool dx = true, dcontext = true, dwo = true, projections = true;
    heed_dtype dweight_dtype = HEED_F32;
    int64_t dbias_bytes = 0;
};

// Lays the parts out from `base` on, which is aligned as a workspace, or NULL; returns their bytes.
int64_t lay_out_gradients(const heed_layer &layer, const LayerSizes &sizes, const GradientWants &wants,
                          int64_t attention_bytes, void *base, GradientMemory *memory);

// Bytes of the workspace that suffice for every backward call within the config's largest sizes without dbias: on the
// CPU the forward's. UNSUPPORTED beyond 2^62.
heed_status largest_backward_workspace(const heed_layer &layer, size_t *bytes);

}  // namespace heed
