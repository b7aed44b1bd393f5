// The two ends of a layer's backward: heads back to the projections' outputs, and those to inputs and weights.
#include <cmath>
#include <cstring>

#include "layer/backward.h"
#include "weight_element.h"

namespace heed {
namespace {

// Zeros where the forward clipped.
heed_status clip(const Backward &b, const void *projected, int64_t count, void *gradient) {
    const heed_dtype dtype = b.config().dtype;
    const float limit = b.config().clip_qkv;
    constexpr int64_t share = 1 << 14;
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

heed_status norm(Backward *b, bool is_q, void *gradient) {
    const heed_layer_config &c = b->config();
    const heed_layer &layer = b->f.layer;
    const int32_t heads = is_q ? c.num_heads : c.num_kv_heads;
    const bool per_head = c.qk_norm == HEED_QK_NORM_HEAD;
    const int32_t length = per_head ? c.head_dim : heads * c.head_dim;
    const int64_t tokens = is_q ? b->rows() : b->key_rows();
    HeapArray<float> &dweight = is_q ? b->dq_norm_weight : b->dk_norm_weight;
    HeapArray<float> &dbias = is_q ? b->dq_norm_bias : b->dk_norm_bias;
    heed_status status = dweight.allocate(b->run.name, length);
    if (!status) status = dbias.allocate(b->run.name, length);
    if (status) return status;
    const void *const x = is_q ? b->q_projected.data() : b->k_projected.data();
    const float *const weight = is_q ? layer.q_norm_weight.data() : layer.k_norm_weight.data();
    return norm_gradients(b->gradient_run(), {x, gradient, per_head ? tokens * heads : tokens, length, weight,
                                              c.qk_norm_epsilon, dweight.data(), dbias.data()});
}

// Rows of `columns` elements from `from` into columns [at, at + columns) of `to`, whose rows have `width`.
void gather(const void *from, int64_t rows, int64_t columns, int64_t bytes, char *to, int64_t at, int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        std::memcpy(to + (row * width + at) * bytes, static_cast<const char *>(from) + row * columns * bytes,
                    static_cast<size_t>(columns * bytes));
    }
}

// W [dim_out, dim_in] of the projections of a source, row-major, one behind the other.
void stack(const heed_linear_weights &w, char **to) {
    const WeightSource from = unpacked(w);
    const int64_t bytes = dtype_bytes(w.dtype);
    for (int64_t n = 0; n < w.dim_out; n++) {
        const char *const row = static_cast<const char *>(from.data) + from.row_offset(n) * bytes;
        for (int64_t k = 0; k < w.dim_in; k++, *to += bytes) {
            std::memcpy(*to, row + from.column_offset(k) * bytes, static_cast<size_t>(bytes));
        }
    }
}

heed_status input_gradient(Backward *b, ProjectedSource *s) {
    const heed_layer &layer = b->f.layer;
    const int64_t bytes = dtype_bytes(b->config().dtype);
    const bool with_q = s == &b->x, with_kv = s == &b->memory || !b->cross();
    HeapArray<char> weight;
    heed_status status = weight.allocate(b->run.name, int64_t{s->size.dim_out} * s->size.dim_in * bytes);
    if (!status) status = s->dx.allocate(b->run.name, s->size.rows * s->size.dim_in * bytes);
    if (status) return status;
    char *to = weight.data();
    if (with_q) stack(layer.q, &to);
    if (with_kv) stack(layer.k, &to);
    if (with_kv) stack(layer.v, &to);
    const WeightSource rows = WeightSource::row_major(weight.data(), s->size.dim_in, s->size.dim_out, s->size.dim_in);
    return linear_input_gradient(b->gradient_run(), s->size, s->dy.data(), rows, s->dx.data());
}

heed_dtype dtype_of(const heed_tensor &tensor, heed_dtype dtype) { return tensor.dtype == HEED_F32 ? HEED_F32 : dtype; }

// Gradients of one source's projections: columns [at, at + heads * dim) of its dy.
struct Columns {
    int32_t at, heads, dim;
    const heed_tensor &dweight, &dbias;
};

heed_status add_columns(const Backward &b, const ProjectedSource &s, const Columns &columns) {
    const GradientRun run = b.gradient_run();
    const int32_t width = columns.heads * columns.dim, dim_in = s.size.dim_in;
    const int64_t bytes = dtype_bytes(run.dtype);
    heed_status status = HEED_OK;
    if (columns.dweight.data != nullptr) {
        const WeightSource place =
            projection_source(b.config(), columns.dweight.data, dim_in, columns.heads, columns.dim);
        status = add_matrix(run, s.dweight.data() + int64_t{columns.at} * dim_in * bytes, width, dim_in, place,
                            dtype_of(columns.dweight, run.dtype));
    }
    if (status || columns.dbias.data == nullptr) return status;
    return add_column_sums(run, s.dy.data(), {s.size.rows, s.size.dim_out, columns.at, width}, columns.dbias.data,
                           dtype_of(columns.dbias, run.dtype));
}

heed_status add_projections(const Backward &b) {
    const heed_layer_config &c = b.config();
    const heed_layer_weights &w = b.g.dweights;
    const int32_t q = c.num_heads * c.head_dim, k = c.num_kv_heads * c.head_dim;
    if (c.weight_layout == HEED_WEIGHTS_FUSED) return add_columns(b, b.x, {0, 1, b.x.size.dim_out, w.wqkv, w.bqkv});
    const ProjectedSource &kv = c.cross ? b.memory : b.x;
    const int32_t first = c.cross ? 0 : q;
    heed_status status = add_columns(b, b.x, {0, c.num_heads, c.head_dim, w.wq, w.bq});
    if (status || kv.size.rows == 0) return status;
    status = add_columns(b, kv, {first, c.num_kv_heads, c.head_dim, w.wk, w.bk});
    return status ? status : add_columns(b, kv, {first + k, c.num_kv_heads, c.head_dim_v, w.wv, w.bv});
}

// dbias has the layout of the bias, which may have gaps.
void add_bias(const Backward &b) {
    const heed_layer_args &a = b.f.a;
    int64_t extent[4] = {a.batch, b.config().num_heads, a.q_len, b.f.longest}, stride[4];
    for (int n = 0; n < 4; n++) {
        if (a.bias_shape[n] == 1) extent[n] = 1;
    }
    View view;
    if (make_view("dbias", {{extent[0], extent[1], extent[2], extent[3]}}, a.bias_layout, Access::write, &view)) return;
    std::memcpy(stride, view.stride, sizeof(stride));
    for (int64_t line = 0; line < extent[0] * extent[1] * extent[2]; line++) {
        const int64_t i = line % extent[2], h = line / extent[2] % extent[1], n = line / extent[2] / extent[1];
        for (int64_t j = 0; j < extent[3]; j++) {
            const int64_t at = n * stride[0] + h * stride[1] + i * stride[2] + j * stride[3];
            const float sum =
                load_element(b.g.dbias.data, at, a.bias.dtype) + load_element(b.dbias.data(), at, a.bias.dtype);
            store_element(b.g.dbias.data, at, a.bias.dtype, sum);
        }
    }
}

}  // namespace

heed_status head_gradients(Backward *b) {
    const heed_layer_config &c = b->config();
    const heed_layer_args &a = b->f.a;
    const int64_t q = b->rows() * c.num_heads * c.head_dim, k = b->key_rows() * c.num_kv_heads * c.head_dim;
    const int64_t v = b->key_rows() * c.num_kv_heads * c.head_dim_v;
    heed_status status = HEED_OK;
    if (c.rotary_dim > 0) {
        HeapArray<float> sin;  // of the angles back
        status = sin.allocate(b->run.name, b->f.layer.rope_sin.size);
        for (int64_t i = 0; !status && i < b->f.layer.rope_sin.size; i++) sin[i] = -b->f.layer.rope_sin.data()[i];
        if (!status) status = rotate(b->run, b->dq.data(), c.num_heads, a.batch, a.q_len, sin.data());
        if (!status) status = rotate(b->run, b->dk.data(), c.num_kv_heads, a.batch, a.q_len, sin.data());
    }
    if (!status && c.qk_norm != HEED_QK_NORM_NONE) {
        status = norm(b, true, b->dq.data());
        if (!status && b->key_rows() > 0) status = norm(b, false, b->dk.data());
    }
    if (status || !(c.clip_qkv > 0)) return status;
    status = clip(*b, b->q_projected.data(), q, b->dq.data());
    if (!status) status = clip(*b, b->k_projected.data(), k, b->dk.data());
    return status ? status : clip(*b, b->run.memory.v, v, b->dv.data());
}

heed_status source_gradients(Backward *b, ProjectedSource *s) {
    const heed_layer_config &c = b->config();
    const int64_t bytes = dtype_bytes(c.dtype);
    const int32_t q = c.num_heads * c.head_dim, k = c.num_kv_heads * c.head_dim, v = c.num_kv_heads * c.head_dim_v;
    const bool is_x = s == &b->x, with_kv = !is_x || !b->cross();
    const heed_layer_weights &w = b->g.dweights;
    if (s->size.rows == 0) return HEED_OK;
    heed_status status = s->dy.allocate(b->run.name, s->size.rows * s->size.dim_out * bytes);
    if (status) return status;
    if (is_x) gather(b->dq.data(), s->size.rows, q, bytes, s->dy.data(), 0, s->size.dim_out);
    if (with_kv) gather(b->dk.data(), s->size.rows, k, bytes, s->dy.data(), is_x ? q : 0, s->size.dim_out);
    if (with_kv) gather(b->dv.data(), s->size.rows, v, bytes, s->dy.data(), (is_x ? q : 0) + k, s->size.dim_out);
    if ((is_x ? b->g.dx : b->g.dmemory).data != nullptr) status = input_gradient(b, s);
    const bool of_q = w.wqkv.data != nullptr || w.wq.data != nullptr;
    const bool of_kv = w.wqkv.data != nullptr || w.wk.data != nullptr || w.wv.data != nullptr;
    if (status || !((is_x && of_q) || (with_kv && of_kv))) return status;
    status = s->dweight.allocate(b->run.name, int64_t{s->size.dim_out} * s->size.dim_in * bytes);
    if (status) return status;
    return linear_weight_gradient(b->gradient_run(), s->size, s->dy.data(), s->data, s->dweight.data());
}

heed_status add_gradients(Backward *b) {
    const heed_layer_config &c = b->config();
    const heed_layer_weights &w = b->g.dweights;
    const GradientRun run = b->gradient_run(), floats = {run.name, HEED_F32, run.execution};
    const auto add_floats = [&](const HeapArray<float> &from, int64_t count, const heed_tensor &to) {
        if (to.data == nullptr || from.data() == nullptr) return HEED_OK;
        return add_elements(floats, from.data(), count, to.data, dtype_of(to, c.dtype));
    };
    heed_status status = add_projections(*b);
    if (!status && w.wo.data != nullptr) {
        status = add_matrix(run, b->dwo.data(), c.dim_out, c.num_heads * c.head_dim_v, output_source(c, w.wo.data),
                            dtype_of(w.wo, c.dtype));
    }
    if (!status && w.bo.data != nullptr) {
        status = add_column_sums(run, b->dy, {b->rows(), c.dim_out, 0, c.dim_out}, w.bo.data, dtype_of(w.bo, c.dtype));
    }
    const heed_layer &l = b->f.layer;
    if (!status) status = add_floats(b->dq_norm_weight, l.q_norm_weight.size, w.q_norm_weight);
    if (!status) status = add_floats(b->dq_norm_bias, l.q_norm_bias.size, w.q_norm_bias);
    if (!status) status = add_floats(b->dk_norm_weight, l.k_norm_weight.size, w.k_norm_weight);
    if (!status) status = add_floats(b->dk_norm_bias, l.k_norm_bias.size, w.k_norm_bias);
    if (!status) status = add_floats(b->dsink, c.num_heads, w.sink);
    for (const auto &[source, to] : {std::pair{&b->x, &b->g.dx}, {&b->memory, &b->g.dmemory}}) {
        if (status || to->data == nullptr || source->size.rows == 0) continue;
        status = add_elements(run, source->dx.data(), source->size.rows * source->size.dim_in, to->data, c.dtype);
    }
    if (!status && b->g.dbias.data != nullptr) add_bias(*b);
    return status;
}

}  // namespace heed
