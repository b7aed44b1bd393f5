// A whole attention layer: its config, packed weights and plans.
#pragma once

#include <vector>

#include "heed/heed.h"
#include "layer/plans.h"
#include "ops/linear.h"

// Norm weights and tables as floats; empty where the layer has none.
struct heed_layer {
    heed_layer_config config;  // defaults resolved
    heed_linear_weights q, k, v, out;
    std::vector<float> q_norm_weight, q_norm_bias, k_norm_weight, k_norm_bias;
    std::vector<float> rope_cos, rope_sin, alibi_slopes, sink;
    const heed::OpKernel *norm = nullptr;
    size_t workspace_bytes = 0;
    mutable heed::PlanCache plans;
};

namespace heed {

// Fills in what 0 stands for, then checks every field.
heed_status resolve_config(const heed_layer_config &config, heed_layer_config *resolved);

// The attention problem of the layer's largest call, without dropout and without anything that a call brings.
void init_problem(const heed_layer_config &config, heed_problem *problem);

// One forward or prepare call's sizes. kv_len: keys that attention sees at most.
struct LayerSizes {
    int32_t batch, q_len, kv_len;
    int32_t new_tokens;  // of k and v that are projected, per sequence: q_len, memory_len or 0
};

// Where the parts of a call's memory lie in the workspace.
struct LayerMemory {
    char *q, *k, *v, *attention;                     // activations
    float *linear;                                   // scratch of the projections
    float *norm;                                     // mean and factor of rows
    float *padding;                                  // [batch, kv_len]: a key padding as a bias
    int32_t *positions;                              // [batch, q_len]
    int32_t *past, *q_offsets, *kv_lens, *new_lens;  // [batch]
    void *append;                                    // scratch of heed_kv_append
    size_t append_bytes;
    void *plan;  // what is left: the workspace of the attention plan
    size_t plan_bytes;
};

// Lays the parts out from `workspace` on; returns the bytes before `plan`.
int64_t lay_out_memory(const heed_layer &layer, const LayerSizes &sizes, void *workspace, size_t bytes,
                       LayerMemory *memory);

// Bytes that suffice for every call within the config's largest sizes.
heed_status largest_workspace(const heed_layer &layer, size_t *bytes);

}  // namespace heed
