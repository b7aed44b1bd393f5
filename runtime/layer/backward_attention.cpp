// The middle of a layer's backward: attention, and the projection behind it.
#include <cstring>

#include "layer/backward.h"
#include "scratch.h"

namespace heed {
namespace {

heed_status keep(const Backward &b, const void *data, int64_t elements, HeapArray<char> *copy) {
    const int64_t bytes = elements * dtype_bytes(b.config().dtype);
    const heed_status status = copy->allocate(b.run.name, bytes);
    if (!status) std::memcpy(copy->data(), data, static_cast<size_t>(bytes));
    return status;
}

}  // namespace

heed_status recompute(Backward *b) {
    const heed_layer_config &c = b->config();
    const LayerMemory &m = b->run.memory;
    fill_lengths(b->f, m);
    heed_status status = fill_scores(&b->f, m);
    if (!status) status = project_inputs(b->f, b->run, b->x.data, b->memory.data);
    if (!status && (c.qk_norm != HEED_QK_NORM_NONE || c.clip_qkv > 0)) {
        status = keep(*b, m.q, b->rows() * c.num_heads * c.head_dim, &b->q_projected);
        if (!status) status = keep(*b, m.k, b->key_rows() * c.num_kv_heads * c.head_dim, &b->k_projected);
    }
    if (!status) status = shape_heads(b->f, b->run);
    if (!status) status = b->lse.allocate(b->run.name, b->rows() * c.num_heads);
    heed_args args = attention_args(b->f, m);
    args.lse = {b->lse.data(), b->rows() * c.num_heads, HEED_F32};
    return status ? status : heed_execute(b->f.plan.get(), &args);
}

heed_status output_gradients(Backward *b) {
    const heed_layer_config &c = b->config();
    const LinearRows size = {b->rows(), c.num_heads * c.head_dim_v, c.dim_out};
    const int64_t bytes = dtype_bytes(c.dtype);
    const GradientRun run = b->gradient_run();
    heed_status status = b->dattention.allocate(run.name, size.rows * size.dim_in * bytes);
    if (!status) {
        status = linear_input_gradient(run, size, b->dy, unpacked(b->f.layer.out), b->dattention.data());
    }
    if (status || b->g.dweights.wo.data == nullptr) return status;
    status = b->dwo.allocate(run.name, int64_t{size.dim_in} * size.dim_out * bytes);
    return status ? status : linear_weight_gradient(run, size, b->dy, b->run.memory.attention, b->dwo.data());
}

heed_status attention_gradients(Backward *b) {
    const heed_layer_config &c = b->config();
    const heed_plan *const plan = b->f.plan.get();
    const int64_t bytes = dtype_bytes(c.dtype), keys = b->key_rows() * c.num_kv_heads;
    const int64_t q = b->rows() * c.num_heads * c.head_dim, k = keys * c.head_dim, v = keys * c.head_dim_v;
    const auto workspace_bytes = static_cast<int64_t>(heed_attention_backward_workspace_bytes(plan));
    HeapArray<char> workspace;
    heed_status status = workspace.allocate(b->run.name, workspace_bytes + scratch_alignment);
    if (!status) status = b->dq.allocate(b->run.name, q * bytes);
    if (!status) status = b->dk.allocate(b->run.name, k * bytes);
    if (!status) status = b->dv.allocate(b->run.name, v * bytes);
    heed_args args = attention_args(b->f, b->run.memory);
    args.lse = {b->lse.data(), b->rows() * c.num_heads, HEED_F32};
    args.workspace = workspace.data() + scratch_alignment -
                     reinterpret_cast<uintptr_t>(workspace.data()) % static_cast<uintptr_t>(scratch_alignment);
    args.workspace_bytes = static_cast<size_t>(workspace_bytes);
    heed_gradients g = {};
    g.struct_size = sizeof(g);
    g.dout = {b->dattention.data(), b->rows() * c.num_heads * c.head_dim_v, c.dtype};
    g.dq = {b->dq.data(), q, c.dtype};
    g.dk = {b->dk.data(), k, c.dtype};
    g.dv = {b->dv.data(), v, c.dtype};
    if (!status && b->g.dbias.data != nullptr) {
        status = b->dbias.allocate(b->run.name, b->g.dbias.size * dtype_bytes(b->f.a.bias.dtype));
        g.dbias = {b->dbias.data(), b->g.dbias.size, b->f.a.bias.dtype};
    }
    if (!status && b->g.dweights.sink.data != nullptr) {
        status = b->dsink.allocate(b->run.name, c.num_heads);
        g.dsink = {b->dsink.data(), c.num_heads, HEED_F32};
    }
    return status ? status : heed_attention_backward(plan, &args, &g);
}

}  // namespace heed
