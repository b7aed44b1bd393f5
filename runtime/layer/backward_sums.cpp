// The last end of a layer's backward: what was found joins the caller's tensors.
#include <utility>

#include "runtime/layer/backward.h"

namespace heed {
namespace {

// Gradients of one source's projections: columns [at, at + heads * dim) of its dy.
struct Columns {
    int32_t at, heads, dim;
    const heed_tensor &dweight, &dbias;
};

heed_status add_columns(const Backward &b, const ProjectedSource &s, const Columns &columns) {
    const StepRun run = b.step_run();
    const int32_t width = columns.heads * columns.dim, dim_in = s.size.dim_in;
    heed_status status = HEED_OK;
    if (columns.dweight.data != nullptr) {
        const int64_t first = int64_t{columns.at} * dim_in * dtype_bytes(b.dweight_dtype());
        const heed_tensor sums = {s.m.dweight + first, int64_t{width} * dim_in, b.dweight_dtype()};
        const WeightSource place =
            projection_source(b.config(), columns.dweight.data, dim_in, columns.heads, columns.dim);
        status = run.backend().add_matrix(run, sums, width, dim_in, place, dtype_of_sum(columns.dweight, run.dtype));
    }
    if (status || columns.dbias.data == nullptr) return status;
    return run.backend().add_column_sums(run, s.m.dy, {s.size.rows, s.size.dim_out, columns.at, width},
                                         columns.dbias.data, dtype_of_sum(columns.dbias, run.dtype));
}

heed_status add_projections(const Backward &b) {
    const heed_layer_config &c = b.config();
    const heed_layer_weights &w = b.g.dweights;
    const int32_t q = c.num_heads * c.head_dim, k = c.num_kv_heads * c.head_dim;
    if (c.weight_layout == HEED_WEIGHTS_FUSED) return add_columns(b, b.x, {0, 1, b.x.size.dim_out, w.wqkv, w.bqkv});
    const ProjectedSource &kv = c.cross ? b.context : b.x;
    const int32_t first = c.cross ? 0 : q;
    heed_status status = add_columns(b, b.x, {0, c.num_heads, c.head_dim, w.wq, w.bq});
    if (status || kv.size.rows == 0) return status;
    status = add_columns(b, kv, {first, c.num_kv_heads, c.head_dim, w.wk, w.bk});
    return status ? status : add_columns(b, kv, {first + k, c.num_kv_heads, c.head_dim_v, w.wv, w.bv});
}

}  // namespace

heed_status add_gradients(Backward *b) {
    const heed_layer_config &c = b->config();
    const heed_layer_weights &w = b->g.dweights;
    const StepRun run = b->step_run();
    const Backend &backend = run.backend();
    const auto add_floats = [&](float *from, int64_t count, const heed_tensor &to) {
        if (to.data == nullptr) return HEED_OK;
        return backend.add_elements(run, {from, count, HEED_F32}, to.data, dtype_of_sum(to, c.dtype));
    };
    heed_status status = add_projections(*b);
    if (!status && w.wo.data != nullptr) {
        const int32_t width = c.num_heads * c.head_dim_v;
        const heed_tensor sums = {b->m.dwo, int64_t{c.dim_out} * width, b->dweight_dtype()};
        status =
            backend.add_matrix(run, sums, c.dim_out, width, output_source(c, w.wo.data), dtype_of_sum(w.wo, c.dtype));
    }
    if (!status && w.bo.data != nullptr) {
        status = backend.add_column_sums(run, b->dy, {b->rows(), c.dim_out, 0, c.dim_out}, w.bo.data,
                                         dtype_of_sum(w.bo, c.dtype));
    }
    const heed_layer &l = b->f.layer;
    if (!status) status = add_floats(b->m.q_norm.dweight, l.q_norm_weight.size, w.q_norm_weight);
    if (!status) status = add_floats(b->m.q_norm.dbias, l.q_norm_bias.size, w.q_norm_bias);
    if (!status && b->key_rows() > 0) {
        status = add_floats(b->m.k_norm.dweight, l.k_norm_weight.size, w.k_norm_weight);
        if (!status) status = add_floats(b->m.k_norm.dbias, l.k_norm_bias.size, w.k_norm_bias);
    }
    if (!status) status = add_floats(b->m.dsink, c.num_heads, w.sink);
    for (const auto &[source, to] : {std::pair{&b->x, &b->g.dx}, {&b->context, &b->g.dcontext}}) {
        if (status || to->data == nullptr || source->size.rows == 0) continue;
        const heed_tensor found = {source->m.dx, source->size.rows * source->size.dim_in, c.dtype};
        status = backend.add_elements(run, found, to->data, c.dtype);
    }
    if (status || b->dbias.span == 0) return status;
    const StepRun of_bias = {run.name, b->f.a.bias.dtype, run.execution};
    return backend.add_view(of_bias, b->m.dbias, b->dbias, b->g.dbias.data);
}

}  // namespace heed
