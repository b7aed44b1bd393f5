#include "runtime/layer/gradient_memory.h"

#include <algorithm>

#include "runtime/layer/parts.h"
#include "runtime/status.h"

namespace heed {
namespace {

LinearRows rows_of_x(const heed_layer_config &c, const LayerSizes &sizes) {
    const int32_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * (c.head_dim + c.head_dim_v);
    return {int64_t{sizes.batch} * sizes.q_len, c.dim_in, q + (c.cross ? 0 : kv)};
}

LinearRows rows_of_context(const heed_layer_config &c, const LayerSizes &sizes) {
    const int32_t kv = c.num_kv_heads * (c.head_dim + c.head_dim_v);
    return {c.cross ? int64_t{sizes.batch} * sizes.new_tokens : 0, c.dim_context, kv};
}

void take_source(const LinearRows &r, int64_t element, bool dx, const GradientWants &wants, Parts *parts,
                 SourceMemory *m) {
    parts->take({r.rows, r.dim_in, element}, &m->copy);
    parts->take({r.rows, r.dim_out, element}, &m->dy);
    parts->take({dx ? r.rows : 0, r.dim_in, element}, &m->dx);
    parts->take({wants.projections ? r.dim_out : 0, r.dim_in, dtype_bytes(wants.dweight_dtype)}, &m->dweight);
}

// What the steps need in addition to the tensors, whose sizes fit.
void take_scratch(const heed_layer &layer, const LayerSizes &sizes, int64_t element, Parts *parts, GradientMemory *m) {
    const heed_layer_config &c = layer.config;
    const LinearRows of_x = rows_of_x(c, sizes), of_context = rows_of_context(c, sizes);
    const LinearRows of_out = {of_x.rows, c.num_heads * c.head_dim_v, c.dim_out};
    int64_t bytes = 0, products = 0;
    const Backend &backend = layer.device.backend();
    const auto needs_sums = [&](int64_t rows, int64_t columns) {
        bytes = std::max(bytes, Parts::product({backend.column_sums_scratch(rows, columns), sizeof(float)}));
    };
    for (const LinearRows &r : {of_x, of_context, of_out}) {
        bytes = std::max(bytes, Parts::product({backend.linear_gradient_scratch(r), element}));
        needs_sums(r.rows, r.dim_out);
    }
    const int64_t lengths[] = {layer.q_norm_weight.size, layer.k_norm_weight.size};
    const int64_t elements[] = {of_x.rows * c.num_heads * c.head_dim,
                                int64_t{sizes.batch} * sizes.new_tokens * c.num_kv_heads * c.head_dim};
    for (int n = 0; n < 2; n++) {
        if (lengths[n] == 0) continue;
        products = std::max(products, backend.workspace_share(elements[n]));
        needs_sums(elements[n] / lengths[n], lengths[n]);
    }
    parts->take(products, &m->products);
    parts->take(bytes, &m->scratch);
}

}  // namespace

int64_t lay_out_gradients(const heed_layer &layer, const LayerSizes &sizes, const GradientWants &wants,
                          int64_t attention_bytes, void *base, GradientMemory *m) {
    const heed_layer_config &c = layer.config;
    const int64_t element = dtype_bytes(c.dtype), heads = c.num_heads, kv_heads = c.num_kv_heads;
    const LinearRows of_x = rows_of_x(c, sizes), of_context = rows_of_context(c, sizes);
    const int64_t rows = of_x.rows, keys = int64_t{sizes.batch} * sizes.new_tokens;
    const bool shapes = c.qk_norm != HEED_QK_NORM_NONE || c.clip_qkv > 0;
    Parts parts(base);
    take_source(of_x, element, wants.dx, wants, &parts, &m->x);
    take_source(of_context, element, wants.dcontext, wants, &parts, &m->context);
    parts.take({rows, c.dim_out, element}, &m->dy);
    parts.take({shapes ? rows : 0, heads, c.head_dim, element}, &m->q_projected);
    parts.take({shapes ? keys : 0, kv_heads, c.head_dim, element}, &m->k_projected);
    parts.take({rows, heads, c.head_dim_v, element}, &m->dattention);
    parts.take({wants.dwo ? c.dim_out : 0, heads, c.head_dim_v, dtype_bytes(wants.dweight_dtype)}, &m->dwo);
    parts.take(wants.dbias_bytes, &m->dbias);
    parts.take({rows, heads, c.head_dim, element}, &m->dq);
    parts.take({keys, kv_heads, c.head_dim, element}, &m->dk);
    parts.take({keys, kv_heads, c.head_dim_v, element}, &m->dv);
    parts.take({rows, heads}, &m->lse);
    parts.take(heads, &m->dsink);
    for (float **part : {&m->q_norm.dweight, &m->q_norm.dbias}) parts.take(layer.q_norm_weight.size, part);
    for (float **part : {&m->k_norm.dweight, &m->k_norm.dbias}) parts.take(layer.k_norm_weight.size, part);
    parts.take({std::max(of_x.dim_out, of_context.dim_out), std::max(of_x.dim_in, of_context.dim_in), element},
               &m->weight);
    if (parts.total() < Parts::largest) take_scratch(layer, sizes, element, &parts, m);
    parts.take(attention_bytes, &m->attention);
    return parts.total();
}

heed_status largest_backward_workspace(const heed_layer &layer, size_t *bytes) {
    const heed_layer_config &c = layer.config;
    const Backend &backend = layer.device.backend();
    const LayerSizes sizes = {c.max_batch, c.max_q_len, c.max_kv_len, c.cross ? c.max_kv_len : c.max_q_len};
    heed_problem largest;
    init_problem(c, &largest);
    GradientMemory memory = {};
    const int64_t attention_bytes = backend.most_backward_bytes(largest);
    const int64_t total = backend.workspace_share(
        lay_out_gradients(layer, sizes, {}, std::max<int64_t>(attention_bytes, 0), nullptr, &memory));
    *bytes = layer.workspace_bytes + static_cast<size_t>(total);
    if (attention_bytes >= 0 && total < Parts::largest) return HEED_OK;
    return fail(HEED_UNSUPPORTED,
                "max_batch is %d, max_q_len is %d, max_kv_len is %d: the workspace of heed_layer_backward is beyond "
                "2^62 bytes",
                c.max_batch, c.max_q_len, c.max_kv_len);
}

}  // namespace heed
