// The last end of a layer's backward: what was found joins the caller's tensors.
#include <utility>

#include "cuda/gradient_launches.h"
#include "layer/backward.h"
#include "weight_element.h"

namespace heed {
namespace {

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
        status = add_matrix(run, s.m.dweight + int64_t{columns.at} * dim_in * bytes, width, dim_in, place,
                            dtype_of(columns.dweight, run.dtype));
    }
    if (status || columns.dbias.data == nullptr) return status;
    return add_column_sums(run, s.m.dy, {s.size.rows, s.size.dim_out, columns.at, width}, columns.dbias.data,
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
heed_status add_bias(const Backward &b) {
    const heed_dtype dtype = b.f.a.bias.dtype;
    const int64_t *const extent = b.dbias.extent, *const stride = b.dbias.stride;
    if (b.f.on_cuda()) {
        const WeightSource place = {b.g.dbias.data,
                                    static_cast<int32_t>(extent[1]),
                                    static_cast<int32_t>(extent[3]),
                                    stride[0],
                                    stride[1],
                                    stride[2],
                                    stride[3]};
        return cuda::launch_add(b.run.execution,
                                {b.m.dbias, dtype, place, dtype, extent[0] * extent[1], extent[2] * extent[3], true});
    }
    for (int64_t line = 0; line < extent[0] * extent[1] * extent[2]; line++) {
        const int64_t i = line % extent[2], h = line / extent[2] % extent[1], n = line / extent[2] / extent[1];
        for (int64_t j = 0; j < extent[3]; j++) {
            const int64_t at = n * stride[0] + h * stride[1] + i * stride[2] + j * stride[3];
            const float sum = load_element(b.g.dbias.data, at, dtype) + load_element(b.m.dbias, at, dtype);
            store_element(b.g.dbias.data, at, dtype, sum);
        }
    }
    return HEED_OK;
}

}  // namespace

heed_status add_gradients(Backward *b) {
    const heed_layer_config &c = b->config();
    const heed_layer_weights &w = b->g.dweights;
    const GradientRun run = b->gradient_run(), floats = {run.name, HEED_F32, run.execution, nullptr};
    const auto add_floats = [&](const float *from, int64_t count, const heed_tensor &to) {
        if (to.data == nullptr) return HEED_OK;
        return add_elements(floats, from, count, to.data, dtype_of(to, c.dtype));
    };
    heed_status status = add_projections(*b);
    if (!status && w.wo.data != nullptr) {
        status = add_matrix(run, b->m.dwo, c.dim_out, c.num_heads * c.head_dim_v, output_source(c, w.wo.data),
                            dtype_of(w.wo, c.dtype));
    }
    if (!status && w.bo.data != nullptr) {
        status = add_column_sums(run, b->dy, {b->rows(), c.dim_out, 0, c.dim_out}, w.bo.data, dtype_of(w.bo, c.dtype));
    }
    const heed_layer &l = b->f.layer;
    if (!status) status = add_floats(b->m.q_norm.dweight, l.q_norm_weight.size, w.q_norm_weight);
    if (!status) status = add_floats(b->m.q_norm.dbias, l.q_norm_bias.size, w.q_norm_bias);
    if (!status && b->key_rows() > 0) {
        status = add_floats(b->m.k_norm.dweight, l.k_norm_weight.size, w.k_norm_weight);
        if (!status) status = add_floats(b->m.k_norm.dbias, l.k_norm_bias.size, w.k_norm_bias);
    }
    if (!status) status = add_floats(b->m.dsink, c.num_heads, w.sink);
    for (const auto &[source, to] : {std::pair{&b->x, &b->g.dx}, {&b->memory, &b->g.dmemory}}) {
        if (status || to->data == nullptr || source->size.rows == 0) continue;
        status = add_elements(run, source->m.dx, source->size.rows * source->size.dim_in, to->data, c.dtype);
    }
    return status || b->dbias.span == 0 ? status : add_bias(*b);
}

}  // namespace heed
