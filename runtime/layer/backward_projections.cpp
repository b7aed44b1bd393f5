// The first end of a layer's backward: heads back to the projections' outputs, and those to inputs and weights.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/gradient_launches.h"
#include "layer/backward.h"
#include "weight_element.h"

namespace heed {
namespace {

// Zeros where the forward clipped.
heed_status clip(const Backward &b, const void *projected, int64_t count, void *gradient) {
    const heed_dtype dtype = b.config().dtype;
    const float limit = b.config().clip_qkv;
    constexpr int64_t share = 1 << 14;
    if (b.f.on_cuda()) return cuda::launch_clip_gradient(b.run.execution, dtype, projected, gradient, count, limit);
    const auto block = [&](int64_t index, int32_t, char(&)[512]) {
        for (int64_t i = index * share; i < std::min((index + 1) * share, count); i++) {
            if (std::fabs(load_element(projected, i, dtype)) >= limit) store_element(gradient, i, dtype, 0);
        }
        return 0;
    };
    const double moved = 2.0 * static_cast<double>(count * dtype_bytes(dtype));
    return run_op(b.run.name, &b.run.execution, op_threads(&b.run.execution, moved), (count + share - 1) / share,
                  block);
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
    return n.rows == 0 ? HEED_OK : norm_gradients(b.gradient_run(), n);
}

// W [dim_out, dim_in] of a projection, row-major, behind *rows rows of `to`.
heed_status stack(const Backward &b, const heed_linear_weights &w, char *to, int64_t *rows) {
    const WeightSource from = unpacked(w);
    const int64_t bytes = dtype_bytes(w.dtype);
    to += *rows * w.dim_in * bytes;
    *rows += w.dim_out;
    if (b.f.on_cuda()) return copy_matrix(b, from.data, w.dim_out, w.dim_in, to);
    for (int64_t n = 0; n < w.dim_out; n++) {
        const char *const row = static_cast<const char *>(from.data) + from.row_offset(n) * bytes;
        for (int64_t k = 0; k < w.dim_in; k++, to += bytes) {
            std::memcpy(to, row + from.column_offset(k) * bytes, static_cast<size_t>(bytes));
        }
    }
    return HEED_OK;
}

heed_status input_gradient(const Backward &b, const ProjectedSource &s) {
    const heed_layer &layer = b.f.layer;
    const bool with_q = &s == &b.x, with_kv = !with_q || !b.cross();
    heed_status status = HEED_OK;
    int64_t rows = 0;
    if (with_q) status = stack(b, layer.q, b.m.weight, &rows);
    if (with_kv && !status) status = stack(b, layer.k, b.m.weight, &rows);
    if (with_kv && !status) status = stack(b, layer.v, b.m.weight, &rows);
    if (status) return status;
    const WeightSource weight = WeightSource::row_major(b.m.weight, s.size.dim_in, s.size.dim_out, s.size.dim_in);
    return linear_input_gradient(b.gradient_run(), s.size, s.m.dy, weight, s.m.dx);
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
    status = clip(*b, m.q_projected, q, m.dq);
    if (!status) status = clip(*b, m.k_projected, k, m.dk);
    return status ? status : clip(*b, b->run.memory.v, v, m.dv);
}

heed_status source_gradients(Backward *b, ProjectedSource *s) {
    const heed_layer_config &c = b->config();
    const GradientMemory &m = b->m;
    const int32_t q = c.num_heads * c.head_dim, k = c.num_kv_heads * c.head_dim, v = c.num_kv_heads * c.head_dim_v;
    const bool is_x = s == &b->x, with_kv = !is_x || !b->cross();
    const heed_layer_weights &w = b->g.dweights;
    const int64_t rows = s->size.rows, width = s->size.dim_out, first = is_x ? q : 0;
    if (rows == 0) return HEED_OK;
    heed_status status = HEED_OK;
    if (is_x) status = copy_columns(*b, m.dq, rows, q, s->m.dy, 0, width);
    if (with_kv && !status) status = copy_columns(*b, m.dk, rows, k, s->m.dy, first, width);
    if (with_kv && !status) status = copy_columns(*b, m.dv, rows, v, s->m.dy, first + k, width);
    if (!status && (is_x ? b->g.dx : b->g.dmemory).data != nullptr) status = input_gradient(*b, *s);
    const bool of_q = w.wqkv.data != nullptr || w.wq.data != nullptr;
    const bool of_kv = w.wqkv.data != nullptr || w.wk.data != nullptr || w.wv.data != nullptr;
    if (status || !((is_x && of_q) || (with_kv && of_kv))) return status;
    return linear_weight_gradient(b->gradient_run(), s->size, s->m.dy, s->data, s->m.dweight);
}

}  // namespace heed
