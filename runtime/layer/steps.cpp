#include "runtime/layer/steps.h"

#include "runtime/layer/cache.h"
#include "runtime/ops/rope_call.h"
#include "runtime/ops/steps.h"

namespace heed {
namespace {

View packed(int64_t batch, int64_t len, int64_t heads, int64_t dim) {
    return {{batch, len, heads, dim}, {len * heads * dim, heads * dim, dim, 1}, batch * len * heads * dim};
}

heed_rope_tables tables_of(const heed_layer &layer) {
    const heed_layer_config &c = layer.config;
    heed_rope_tables tables = {};
    tables.rotary_dim = c.rotary_dim;
    tables.interleaved = c.rope_interleaved;
    tables.max_position = c.max_position;
    tables.cos = {layer.rope_cos.data(), layer.rope_cos.size, HEED_F32};
    tables.sin = {layer.rope_sin.data(), layer.rope_sin.size, HEED_F32};
    return tables;
}

}  // namespace

heed_status project(const LayerRun &run, const void *x, int32_t batch, int32_t len, bool with_q, bool with_kv) {
    const heed_layer_config &c = run.layer.config;
    float clip = no_clip;
    if (c.clip_qkv > 0) clip = c.clip_qkv;
    LinearPiece pieces[3];
    int32_t count = 0;
    if (with_q) {
        pieces[count++] = {&run.layer.q, 0, run.memory.q, packed(batch, len, c.num_heads, c.head_dim), clip};
    }
    if (with_kv) {
        pieces[count++] = {&run.layer.k, 0, run.memory.k, packed(batch, len, c.num_kv_heads, c.head_dim), clip};
        pieces[count++] = {&run.layer.v, 0, run.memory.v, packed(batch, len, c.num_kv_heads, c.head_dim_v), clip};
    }
    const View view = packed(batch, len, 1, with_q ? c.dim_in : c.dim_context);
    const LinearCall call = {run.name, x, view, pieces, count, &run.execution};
    return run.backend().linear(call, run.memory.linear);
}

heed_status project_out(const LayerRun &run, int32_t batch, int32_t len, void *y) {
    const heed_layer_config &c = run.layer.config;
    const LinearPiece piece = {&run.layer.out, 0, y, packed(batch, len, 1, c.dim_out), no_clip};
    const View view = packed(batch, len, 1, int64_t{c.num_heads} * c.head_dim_v);
    return run.backend().linear({run.name, run.memory.attention, view, &piece, 1, &run.execution}, run.memory.linear);
}

heed_status normalise(const LayerRun &run, bool is_q, int64_t tokens) {
    const heed_layer &layer = run.layer;
    const heed_layer_config &c = layer.config;
    if (c.qk_norm == HEED_QK_NORM_NONE) return HEED_OK;
    const int32_t heads = is_q ? c.num_heads : c.num_kv_heads;
    const bool per_head = c.qk_norm == HEED_QK_NORM_HEAD;
    const int32_t length = per_head ? c.head_dim : heads * c.head_dim;
    const LayerFloats &weight = is_q ? layer.q_norm_weight : layer.k_norm_weight;
    const LayerFloats &bias = is_q ? layer.q_norm_bias : layer.k_norm_bias;
    return run.backend().norm({run.name, c.dtype, run.execution},
                              {is_q ? run.memory.q : run.memory.k, per_head ? tokens * heads : tokens, length,
                               weight.data(), bias.data(), c.qk_norm_epsilon, layer.norm, run.memory.norm});
}

heed_status rotate(const LayerRun &run, void *x, int32_t num_heads, int32_t batch, int32_t len, float direction) {
    const heed_layer_config &c = run.layer.config;
    heed_rope_args args = {};
    args.struct_size = sizeof(args);
    args.dtype = c.dtype;
    args.batch = batch;
    args.len = len;
    args.num_heads = num_heads;
    args.head_dim = c.head_dim;
    args.x = {x, int64_t{batch} * len * num_heads * c.head_dim, c.dtype};
    args.out = args.x;
    args.tables = tables_of(run.layer);
    args.tables.positions = run.memory.positions;
    args.execution = run.execution;
    RopeCall call;
    const heed_status status = prepare_rope(args, &call);
    call.rotation.direction = direction;
    return status ? status : run_rope(args, call);
}

heed_status append(const LayerRun &run, heed_cache *cache, int32_t len) {
    const heed_layer_config &c = run.layer.config;
    const int64_t tokens = int64_t{cache->batch} * len * c.num_kv_heads;
    const heed_rope_tables tables = tables_of(run.layer);
    heed_kv_append_args args = {};
    args.struct_size = sizeof(args);
    args.dtype = c.dtype;
    args.new_len = len;
    args.new_lens = run.memory.new_lens;
    args.k_new = {run.memory.k, tokens * c.head_dim, c.dtype};
    args.v_new = {run.memory.v, tokens * c.head_dim_v, c.dtype};
    args.cache = cache->view();
    args.rope = c.rotary_dim > 0 ? &tables : nullptr;
    args.execution = run.execution;
    args.execution.workspace = run.memory.append;  // CUDA: none
    args.execution.workspace_bytes = run.memory.append_bytes;
    return heed_kv_append(&args);
}

}  // namespace heed
