// The middle of a layer's backward: attention, and the projection after it.
#include "runtime/layer/backward.h"

namespace heed {
namespace {

heed_args args_with_lse(const Backward &b) {
    const int64_t rows = b.rows() * b.config().num_heads;
    heed_args args = attention_args(b.f, b.run.memory);
    args.lse = {b.m.lse, rows, HEED_F32};
    return args;
}

}  // namespace

heed_status recompute(Backward *b) {
    const heed_layer_config &c = b->config();
    const LayerMemory &m = b->run.memory;
    fill_lengths(b->f, m);
    heed_status status = fill_scores(&b->f, m);
    if (!status) status = project_inputs(b->f, b->run, b->x.data, b->context.data);
    if (!status && (c.qk_norm != HEED_QK_NORM_NONE || c.clip_qkv > 0)) {
        const int64_t q = int64_t{c.num_heads} * c.head_dim, k = int64_t{c.num_kv_heads} * c.head_dim;
        const StepRun run = b->step_run();
        status = run.backend().copy_rows(run, {m.q, q, b->m.q_projected, q, b->rows(), q});
        if (!status) status = run.backend().copy_rows(run, {m.k, k, b->m.k_projected, k, b->key_rows(), k});
    }
    if (!status) status = shape_heads(b->f, b->run);
    const heed_args args = args_with_lse(*b);
    return status ? status : heed_execute(b->f.plan.get(), &args);
}

heed_status output_gradients(Backward *b) {
    const heed_layer_config &c = b->config();
    const LinearRows size = {b->rows(), c.num_heads * c.head_dim_v, c.dim_out};
    const StepRun run = b->step_run();
    const Backend &backend = run.backend();
    const heed_status status =
        backend.input_gradient(run, size, b->dy, backend.unpacked(b->f.layer.out), b->m.dattention);
    if (status || b->g.dweights.wo.data == nullptr) return status;
    return backend.weight_gradient(run, size, b->dy, b->run.memory.attention, b->m.dwo, b->dweight_dtype());
}

heed_status attention_gradients(Backward *b) {
    const heed_layer_config &c = b->config();
    const heed_plan *const plan = b->f.plan.get();
    const GradientMemory &m = b->m;
    const int64_t rows = b->rows() * c.num_heads, keys = b->key_rows() * c.num_kv_heads;
    heed_args args = args_with_lse(*b);
    args.workspace = m.attention;
    args.workspace_bytes = heed_attention_backward_workspace_bytes(plan);
    heed_gradients g = {};
    g.struct_size = sizeof(g);
    g.dout = {m.dattention, rows * c.head_dim_v, c.dtype};
    g.dq = {m.dq, rows * c.head_dim, c.dtype};
    g.dk = {m.dk, keys * c.head_dim, c.dtype};
    g.dv = {m.dv, keys * c.head_dim_v, c.dtype};
    if (b->g.dbias.data != nullptr) g.dbias = {m.dbias, b->dbias.span, b->f.a.bias.dtype};
    if (b->g.dweights.sink.data != nullptr) g.dsink = {m.dsink, c.num_heads, HEED_F32};
    return heed_attention_backward(plan, &args, &g);
}

}  // namespace heed
