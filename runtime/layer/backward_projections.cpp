// The first end of a layer's backward: heads back to the projections' outputs, and those to inputs and weights.
#include "runtime/layer/backward.h"
#include "runtime/weight_element.h"

namespace heed {
namespace {

// What clipped elements hold.
float limit_in_type(const heed_layer_config &c) {
    uint32_t bits = 0;
    store_element(&bits, 0, c.dtype, c.clip_qkv);
    return load_element(&bits, 0, c.dtype);
}

heed_status norm(const Backward &b, bool is_q) {
    const heed_layer_config &c = b.config();
    const heed_layer &layer = b.f.layer;
    const int32_t heads = is_q ? c.num_heads : c.num_kv_heads;
    const int64_t tokens = is_q ? b.rows() : b.key_rows();
    NormGradient n = {};
    n.x = is_q ? b.m.q_projected : b.m.k_projected;
    n.dy = is_q ? b.m.dq : b.m.dk;
    n.length = c.qk_norm == HEED_QK_NORM_HEAD ? c.head_dim : heads * c.head_dim;
    n.rows = tokens * heads * c.head_dim / n.length;
    n.weight = is_q ? layer.q_norm_weight.data() : layer.k_norm_weight.data();
    n.epsilon = c.qk_norm_epsilon;
    n.sums = is_q ? b.m.q_norm : b.m.k_norm;
    n.products = b.m.products;
    return n.rows == 0 ? HEED_OK : b.f.backend().norm_gradients(b.step_run(), n);
}

heed_status input_gradient(const Backward &b, const ProjectedSource &s) {
    const heed_layer &layer = b.f.layer;
    const bool with_q = &s == &b.x, with_kv = !with_q || !b.cross();
    const StepRun run = b.step_run();
    heed_status status = HEED_OK;
    char *to = b.m.weight;
    const auto stack = [&](bool used, const heed_linear_weights &w) {
        if (used && !status) status = run.backend().copy_weight(run, w, to);
        if (used) to += int64_t{w.dim_out} * w.dim_in * dtype_bytes(w.dtype);
    };
    stack(with_q, layer.q);
    stack(with_kv, layer.k);
    stack(with_kv, layer.v);
    if (status) return status;
    const WeightSource weight = WeightSource::row_major(b.m.weight, s.size.dim_in, s.size.dim_out, s.size.dim_in);
    return run.backend().input_gradient(run, s.size, s.m.dy, weight, s.m.dx);
}

}  // namespace

heed_status head_gradients(Backward *b) {
    const heed_layer_config &c = b->config();
    const heed_layer_args &a = b->f.a;
    const GradientMemory &m = b->m;
    const int64_t q = b->rows() * c.num_heads * c.head_dim, k = b->key_rows() * c.num_kv_heads * c.head_dim;
    const int64_t v = b->key_rows() * c.num_kv_heads * c.head_dim_v;
    heed_status status = HEED_OK;
    if (c.rotary_dim > 0) {
        status = rotate(b->run, m.dq, c.num_heads, a.batch, a.q_len, -1);
        if (!status) status = rotate(b->run, m.dk, c.num_kv_heads, a.batch, a.q_len, -1);
    }
    if (!status && c.qk_norm != HEED_QK_NORM_NONE) {
        status = norm(*b, true);
        if (!status) status = norm(*b, false);
    }
    if (status || !(c.clip_qkv > 0)) return status;
    const StepRun run = b->step_run();
    const Backend &backend = run.backend();
    const float limit = limit_in_type(c);
    status = backend.clip_gradient(run, m.q_projected, q, limit, m.dq);
    if (!status) status = backend.clip_gradient(run, m.k_projected, k, limit, m.dk);
    return status ? status : backend.clip_gradient(run, b->run.memory.v, v, limit, m.dv);
}

heed_status source_gradients(Backward *b, ProjectedSource *s) {
    const heed_layer_config &c = b->config();
    const GradientMemory &m = b->m;
    const int32_t q = c.num_heads * c.head_dim, k = c.num_kv_heads * c.head_dim, v = c.num_kv_heads * c.head_dim_v;
    const bool is_x = s == &b->x, with_kv = !is_x || !b->cross();
    const heed_layer_weights &w = b->g.dweights;
    const int64_t rows = s->size.rows, width = s->size.dim_out, first = is_x ? q : 0;
    if (rows == 0) return HEED_OK;
    const StepRun run = b->step_run();
    const auto copy_columns = [&](const char *from, int64_t columns, int64_t at) {
        char *const to = s->m.dy + at * dtype_bytes(c.dtype);
        return run.backend().copy_rows(run, {from, columns, to, width, rows, columns});
    };
    heed_status status = HEED_OK;
    if (is_x) status = copy_columns(m.dq, q, 0);
    if (with_kv && !status) status = copy_columns(m.dk, k, first);
    if (with_kv && !status) status = copy_columns(m.dv, v, first + k);
    if (!status && (is_x ? b->g.dx : b->g.dcontext).data != nullptr) status = input_gradient(*b, *s);
    const bool of_q = w.wqkv.data != nullptr || w.wq.data != nullptr;
    const bool of_kv = w.wqkv.data != nullptr || w.wk.data != nullptr || w.wv.data != nullptr;
    if (status || !((is_x && of_q) || (with_kv && of_kv))) return status;
    return run.backend().weight_gradient(run, s->size, s->m.dy, s->data, s->m.dweight, b->dweight_dtype());
}

}  // namespace heed
