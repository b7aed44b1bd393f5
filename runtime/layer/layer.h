// A whole attention layer: its config, packed weights and plans.
#pragma once

#include <array>

#include "heed/fields.h"
#include "runtime/backend.h"
#include "runtime/layer/plans.h"
#include "runtime/ops/linear.h"

namespace heed {

struct LayerFloats {
    OwnedMemory memory;
    int64_t size = 0;

    bool empty() const { return size == 0; }
    float *data() const { return static_cast<float *>(memory.get()); }
};

}  // namespace heed

// Norm weights and tables as floats; empty where the layer has none.
struct heed_layer {
    heed_layer_config config;  // defaults resolved
    heed::LayerDevice device;
    heed_linear_weights q, k, v, out;
    heed::LayerFloats q_norm_weight, q_norm_bias, k_norm_weight, k_norm_bias;
    heed::LayerFloats rope_cos, rope_sin;
#define HEED_DECLARE(name, ...) heed::LayerFloats name;
    HEED_HEAD_ARRAYS(HEED_DECLARE)
#undef HEED_DECLARE
    const heed::OpKernel *norm = nullptr;  // CPU
    size_t workspace_bytes = 0, backward_workspace_bytes = 0;
    mutable heed::PlanCache plans;
};

namespace heed {

// Fills in what 0 means, then checks every field.
heed_status resolve_config(const heed_layer_config &config, heed_layer_config *resolved);

// Where a config's weights are in the caller's memory: those of `heads` heads of one projection, and wo.
WeightSource projection_source(const heed_layer_config &config, const void *data, int32_t dim_in, int32_t heads,
                               int32_t head_dim);
WeightSource output_source(const heed_layer_config &config, const void *data);

// A weight, or a bias, of which the caller gave `tensor`.
struct LayerWeight {
    const char *name, *gradient_name;
    heed_tensor tensor;
    std::array<int64_t, 3> shape;  // [dim_out, dim_in], [heads, dim_in, head_dim] or [dim_out]
    size_t rank;
    bool has = true;  // of the config; a bias may still be missing

    int64_t elements() const;  // -1: more than 2^63-1
};

// All of the projections, whichever the weight_layout.
std::array<LayerWeight, 10> projection_weights(const heed_layer_config &config, const heed_layer_weights &weights);

// The attention problem of the layer's largest call, without dropout and without anything that a call brings.
void init_problem(const heed_layer_config &config, heed_problem *problem);

// One forward or prepare call's sizes. kv_len: keys that attention sees at most.
struct LayerSizes {
    int32_t batch, q_len, kv_len;
    int32_t new_tokens;    // of k and v that are projected, per sequence: q_len, context_len or 0
    int64_t combined = 0;  // CUDA: elements of a mask that a key padding joins
};

// Where the parts of a call's memory are: in the workspace, on CUDA except for the lists.
struct LayerMemory {
    char *lists;                                     // CUDA: host memory for all of int32
    char *q, *k, *v, *attention;                     // activations
    float *linear;                                   // scratch of the projections
    float *norm;                                     // mean and factor of rows
    float *padding;                                  // [batch, kv_len]: a key padding as a bias
    uint8_t *combined;                               // CUDA: mask and key padding
    int32_t *positions;                              // [batch, q_len]; of packed tokens [total]
    int32_t *past, *q_offsets, *kv_lens, *new_lens;  // [batch]
    int32_t *cu_seqlens;                             // [batch + 1], of packed tokens
    void *append;                                    // scratch of heed_kv_append
    size_t append_bytes;
    void *plan;  // what is left: the workspace of the attention plan
    size_t plan_bytes;
};

// CUDA: memory->lists for calls within these sizes. `name` is the API function that needs it.
heed_status take_lists(const heed_layer &layer, const char *name, const LayerSizes &sizes, HeapArray<char> *lists,
                       LayerMemory *memory);

// Lays the parts out from `workspace` on, and from `lists` on; returns the bytes before `plan`.
int64_t lay_out_memory(const heed_layer &layer, const LayerSizes &sizes, void *workspace, size_t bytes,
                       LayerMemory *memory);

// Bytes that suffice for every call within the config's largest sizes.
heed_status largest_workspace(const heed_layer &layer, size_t *bytes);

}  // namespace heed
