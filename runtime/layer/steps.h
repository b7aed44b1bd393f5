// The steps of a layer between its tensors: projections, norms, rotations, attention.
#pragma once

#include "runtime/layer/layer.h"

namespace heed {

// Where a call's steps run; `name` is the API function of a failure.
struct LayerRun {
    const char *name;
    const heed_layer &layer;
    const heed_execution &execution;
    LayerMemory memory;

    const Backend &backend() const { return layer.device.backend(); }
};

// k and v of context [batch, len, dim_context] into the workspace; q too when `with_q` (self attention).
heed_status project(const LayerRun &run, const void *x, int32_t batch, int32_t len, bool with_q, bool with_kv);

// y [batch, len, dim_out] of the attention output in the workspace.
heed_status project_out(const LayerRun &run, int32_t batch, int32_t len, void *y);

// Layer norm of q or k [tokens] in the workspace, in place; nothing for a layer without norm.
heed_status normalise(const LayerRun &run, bool is_q, int64_t tokens);

// Rotates x [batch, len, num_heads, head_dim] in place, by the workspace's positions; direction -1 rotates back.
heed_status rotate(const LayerRun &run, void *x, int32_t num_heads, int32_t batch, int32_t len, float direction = 1);

// Appends new_lens[b] of `len` projected tokens to the cache, whose slots are reserved; rotates keys on their way.
heed_status append(const LayerRun &run, heed_cache *cache, int32_t len);

}  // namespace heed
