// heed_layer_create: the caller's weights against the config, packed.
#include <cinttypes>
#include <memory>
#include <vector>

#include "runtime/api.h"
#include "runtime/layer/gradient_memory.h"
#include "runtime/layer/layer.h"
#include "runtime/ranges.h"
#include "runtime/weight_element.h"

namespace heed {
namespace {

constexpr char create_name[] = "heed_layer_create";

heed_status check_tensor(const LayerWeight &w, heed_dtype dtype) {
    const int64_t elements = w.elements();
    if (w.tensor.data == nullptr) return fail(HEED_INVALID_ARGUMENT, "%s is NULL; the layer needs it", w.name);
    if (w.tensor.size != elements) {
        char shape[80] = "";
        int at = 0;
        for (size_t i = 0; i < w.rank; i++) {
            at += std::snprintf(shape + at, sizeof(shape) - static_cast<size_t>(at), i == 0 ? "%" PRId64 : ", %" PRId64,
                                w.shape[i]);
        }
        return fail(HEED_INVALID_ARGUMENT, "%s has %" PRId64 " elements; the layer's shape [%s] has %" PRId64, w.name,
                    w.tensor.size, shape, elements);
    }
    MemoryRanges ranges;
    return ranges.add(w.name, w.tensor, dtype, elements, Access::read);
}

heed_status check_unused(const char *name, const heed_tensor &tensor, const char *why) {
    if (tensor.data == nullptr) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "%s is not NULL; a layer with %s has none", name, why);
}

// Widths of the projections.
struct Widths {
    int32_t q, k, v;
};

heed_status check_widths(const heed_layer_config &c, Widths *widths) {
    const int64_t q = int64_t{c.num_heads} * c.head_dim, out = int64_t{c.num_heads} * c.head_dim_v;
    if (q > INT32_MAX / 4 || out > INT32_MAX / 4) {
        return fail(HEED_UNSUPPORTED, "%d heads of %d and %d elements are beyond 2^29 columns", c.num_heads, c.head_dim,
                    c.head_dim_v);
    }
    *widths = {static_cast<int32_t>(q), c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim_v};
    return HEED_OK;
}

const char *bytes_at(const heed_tensor &tensor, heed_dtype dtype, int64_t element) {
    return tensor.data == nullptr ? nullptr : static_cast<const char *>(tensor.data) + element * dtype_bytes(dtype);
}

// One projection from the given heads: weights and bias from element `column` * dim_in (or `column`) on.
heed_status pack_projection(const heed_layer &layer, const heed_tensor &weight, const heed_tensor &bias, int64_t column,
                            int32_t dim_in, int32_t heads, int32_t head_dim, heed_linear_weights *packed) {
    const heed_dtype dtype = layer.config.dtype;
    const void *data = bytes_at(weight, dtype, column * dim_in);
    const WeightSource source = projection_source(layer.config, data, dim_in, heads, head_dim);
    return layer.device.backend().pack(
        create_name, layer.device, {dtype, dim_in, heads * head_dim, source, bytes_at(bias, dtype, column)}, packed);
}

// y[o] = sum over (h, e) of heads[h, e] * wo: [dim_out, H*E], or [H, dim_out, E].
heed_status pack_output(const heed_layer_weights &w, heed_layer *layer) {
    const heed_layer_config &c = layer->config;
    const LinearSource source = {c.dtype, c.num_heads * c.head_dim_v, c.dim_out, output_source(c, w.wo.data),
                                 w.bo.data};
    return layer->device.backend().pack(create_name, layer->device, source, &layer->out);
}

heed_status check_projections(const heed_layer_config &c, const heed_layer_weights &given) {
    const bool fused = c.weight_layout == HEED_WEIGHTS_FUSED;
    const std::array<LayerWeight, 10> weights = projection_weights(c, given);
    heed_status status = HEED_OK;
    for (const LayerWeight &w : weights) {
        const char *const why = fused ? "HEED_WEIGHTS_FUSED" : "separate projections";
        if (!status && !w.has) status = check_unused(w.name, w.tensor, why);
    }
    for (const LayerWeight &w : weights) {
        const bool missing_bias = w.rank == 1 && w.tensor.data == nullptr;
        if (!status && w.has && !missing_bias) status = check_tensor(w, c.dtype);
    }
    return status;
}

heed_status pack_projections(const heed_layer_weights &w, const Widths &n, heed_layer *layer) {
    const heed_layer_config &c = layer->config;
    const bool fused = c.weight_layout == HEED_WEIGHTS_FUSED;
    const auto take = [&](const heed_tensor &weight, const heed_tensor &bias, int64_t column, int32_t dim_in,
                          int32_t heads, int32_t head_dim, heed_linear_weights *packed) {
        return pack_projection(*layer, fused ? w.wqkv : weight, fused ? w.bqkv : bias, fused ? column : 0, dim_in,
                               heads, head_dim, packed);
    };
    heed_status status = take(w.wq, w.bq, 0, c.dim_in, c.num_heads, c.head_dim, &layer->q);
    if (!status) status = take(w.wk, w.bk, n.q, c.dim_context, c.num_kv_heads, c.head_dim, &layer->k);
    if (!status) {
        status = take(w.wv, w.bv, int64_t{n.q} + n.k, c.dim_context, c.num_kv_heads, c.head_dim_v, &layer->v);
    }
    return status ? status : pack_output(w, layer);
}

heed_status keep_floats(const std::vector<float> &values, const LayerDevice &device, LayerFloats *floats) {
    floats->size = static_cast<int64_t>(values.size());
    const int64_t bytes = floats->size * int64_t{sizeof(float)};
    const heed_status status = device.backend().allocate(create_name, device, bytes, &floats->memory);
    return status ? status : device.backend().fill(device, values.data(), bytes, floats->data());
}

heed_status take_floats(const char *name, const heed_tensor &tensor, heed_dtype dtype, int64_t outer, int64_t inner,
                        const LayerDevice &device, LayerFloats *floats) {
    if (const heed_status status = check_tensor({name, "", tensor, {outer, inner}, 2}, dtype)) return status;
    std::vector<float> values(static_cast<size_t>(outer * inner));
    load_elements(tensor.data, dtype, outer * inner, values.data());
    return keep_floats(values, device, floats);
}

heed_status take_norms(const heed_layer_weights &w, const Widths &n, heed_layer *layer) {
    const heed_layer_config &c = layer->config;
    heed_status status = HEED_OK;
    if (c.qk_norm == HEED_QK_NORM_NONE) {
        for (const auto &[name, tensor] : {std::pair{"q_norm_weight", &w.q_norm_weight},
                                           {"q_norm_bias", &w.q_norm_bias},
                                           {"k_norm_weight", &w.k_norm_weight},
                                           {"k_norm_bias", &w.k_norm_bias}}) {
            if (!status) status = check_unused(name, *tensor, "HEED_QK_NORM_NONE");
        }
        return status;
    }
    const LayerDevice &device = layer->device;
    const bool per_head = c.qk_norm == HEED_QK_NORM_HEAD;
    const int64_t q = per_head ? c.head_dim : n.q, k = per_head ? c.head_dim : n.k;
    const auto take_bias = [&](const char *name, const heed_tensor &tensor, int64_t length, LayerFloats *floats) {
        if (tensor.data != nullptr) return take_floats(name, tensor, c.dtype, 1, length, device, floats);
        return keep_floats(std::vector<float>(static_cast<size_t>(length)), device, floats);
    };
    status = take_floats("q_norm_weight", w.q_norm_weight, c.dtype, 1, q, device, &layer->q_norm_weight);
    if (!status) status = take_floats("k_norm_weight", w.k_norm_weight, c.dtype, 1, k, device, &layer->k_norm_weight);
    if (!status) status = take_bias("q_norm_bias", w.q_norm_bias, q, &layer->q_norm_bias);
    if (!status) status = take_bias("k_norm_bias", w.k_norm_bias, k, &layer->k_norm_bias);
    return status ? status : device.backend().find_kernel(Op::layer_norm, c.dtype, c.dtype, &layer->norm);
}

heed_status take_tables(const heed_layer_weights &w, heed_layer *layer) {
    const heed_layer_config &c = layer->config;
    const LayerDevice &device = layer->device;
    const OpKernel *kernel = nullptr;
    heed_status status = HEED_OK;
    if (c.rotary_dim > 0) {
        const int64_t rows = c.max_position, pairs = c.rotary_dim / 2;
        status = take_floats("rope_cos", w.rope_cos, HEED_F32, rows, pairs, device, &layer->rope_cos);
        if (!status) status = take_floats("rope_sin", w.rope_sin, HEED_F32, rows, pairs, device, &layer->rope_sin);
        if (!status) status = device.backend().find_kernel(Op::rope, c.dtype, c.dtype, &kernel);
    } else {
        status = check_unused("rope_cos", w.rope_cos, "rotary_dim 0");
        if (!status) status = check_unused("rope_sin", w.rope_sin, "rotary_dim 0");
    }
#define HEED_TAKE(name, ...)                                                                                           \
    if (!status && w.name.data != nullptr) {                                                                           \
        status = take_floats(#name, w.name, HEED_F32, 1, c.num_heads, device, &layer->name);                           \
    }
    HEED_HEAD_ARRAYS(HEED_TAKE)
#undef HEED_TAKE
    return status || c.clip_qkv <= 0 ? status : device.backend().check_launches({Op::clip}, c.dtype);
}

// Checks the weights against the config and packs them.
heed_status take_weights(const heed_layer_weights &w, heed_layer *layer) {
    heed_status status = check_struct_size("heed_layer_weights", w.struct_size, sizeof(heed_layer_weights));
    Widths widths = {};
    if (!status) status = check_widths(layer->config, &widths);
    if (!status) status = check_projections(layer->config, w);
    if (!status) status = take_norms(w, widths, layer);
    if (!status) status = take_tables(w, layer);
    return status ? status : pack_projections(w, widths, layer);
}

heed_status create_layer(const heed_layer_config &config, const heed_layer_weights &weights, heed_layer **result) {
    auto layer = std::make_unique<heed_layer>();
    DeviceScope scope;
    heed_status status = resolve_config(config, &layer->config);
    layer->device.kind = layer->config.device;
    if (!status) status = layer->device.backend().open(layer->config.dtype, &scope, &layer->device);
    if (!status) status = take_weights(weights, layer.get());
    if (!status) status = largest_workspace(*layer, &layer->workspace_bytes);
    if (!status) status = largest_backward_workspace(*layer, &layer->backward_workspace_bytes);
    if (!status) *result = layer.release();
    return status;
}

}  // namespace

int64_t LayerWeight::elements() const {
    int64_t elements = 1;
    for (size_t i = 0; i < rank; i++) {
        if (!checked_mul(elements, shape[i], &elements)) return -1;
    }
    return elements;
}

std::array<LayerWeight, 10> projection_weights(const heed_layer_config &c, const heed_layer_weights &weights) {
    const bool fused = c.weight_layout == HEED_WEIGHTS_FUSED, einsum = c.weight_layout == HEED_WEIGHTS_EINSUM;
    const int64_t h = c.num_heads, g = c.num_kv_heads, d = c.head_dim, e = c.head_dim_v;
    const int64_t q = h * d, k = g * d, v = g * e, all = q + k + v;
    const size_t rank = einsum ? 3 : 2;
    const auto shape = [&](int64_t heads, int64_t dim_in, int64_t dim) {
        return einsum ? std::array{heads, dim_in, dim} : std::array{heads * dim, dim_in, int64_t{1}};
    };
#define HEED_NAMED(name) #name, "dweights." #name, weights.name
    return {{{HEED_NAMED(wqkv), {all, c.dim_in}, 2, fused},
             {HEED_NAMED(bqkv), {all}, 1, fused},
             {HEED_NAMED(wq), shape(h, c.dim_in, d), rank, !fused},
             {HEED_NAMED(wk), shape(g, c.dim_context, d), rank, !fused},
             {HEED_NAMED(wv), shape(g, c.dim_context, e), rank, !fused},
             {HEED_NAMED(bq), {q}, 1, !fused},
             {HEED_NAMED(bk), {k}, 1, !fused},
             {HEED_NAMED(bv), {v}, 1, !fused},
             {HEED_NAMED(wo),
              einsum ? std::array{h, int64_t{c.dim_out}, e} : std::array{int64_t{c.dim_out}, h * e, int64_t{1}}, rank},
             {HEED_NAMED(bo), {c.dim_out}, 1}}};
#undef HEED_NAMED
}

WeightSource projection_source(const heed_layer_config &c, const void *data, int32_t dim_in, int32_t heads,
                               int32_t head_dim) {
    if (c.weight_layout != HEED_WEIGHTS_EINSUM) {
        return WeightSource::row_major(data, dim_in, heads * head_dim, dim_in);
    }
    return {data, head_dim, dim_in, int64_t{dim_in} * head_dim, 1, 0, head_dim};
}

WeightSource output_source(const heed_layer_config &c, const void *data) {
    const int32_t dim_in = c.num_heads * c.head_dim_v;
    if (c.weight_layout != HEED_WEIGHTS_EINSUM) return WeightSource::row_major(data, dim_in, c.dim_out, dim_in);
    return {data, c.dim_out, c.head_dim_v, 0, c.head_dim_v, int64_t{c.dim_out} * c.head_dim_v, 1};
}

}  // namespace heed

extern "C" {

heed_status heed_layer_create(const heed_layer_config *config, const heed_layer_weights *weights, heed_layer **layer) {
    return heed::run_api(heed::create_name, [&] {
        heed_status status = heed::check_given(heed::create_name, "layer", layer);
        if (!status) *layer = nullptr;
        if (!status) status = heed::check_given(heed::create_name, "config", config);
        if (!status) status = heed::check_given(heed::create_name, "weights", weights);
        return status ? status : heed::create_layer(*config, *weights, layer);
    });
}

void heed_layer_destroy(heed_layer *layer) { delete layer; }

size_t heed_layer_workspace_bytes(const heed_layer *layer) { return layer == nullptr ? 0 : layer->workspace_bytes; }

}  // extern "C"
