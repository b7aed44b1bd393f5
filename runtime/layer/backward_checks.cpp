// What a backward call must fulfil, and the rows that it may read.
#include <cinttypes>
#include <cstring>

#include "layer/backward.h"
#include "ranges.h"

namespace heed {
namespace {

heed_dtype dtype_of_gradient(const heed_tensor &tensor, heed_dtype dtype) {
    return tensor.dtype == HEED_F32 ? HEED_F32 : dtype;
}

heed_status refuse(const char *name, const heed_tensor &tensor, const char *why) {
    if (tensor.data == nullptr) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "%s is not NULL; %s", name, why);
}

// Adds the gradients of weights that the layer has; the first failure stays.
class WeightChecks {
public:
    WeightChecks(const heed_layer &layer, MemoryRanges *ranges) : layer_(layer), ranges_(*ranges) {}

    heed_status status = HEED_OK;

    void expect(const char *name, const heed_tensor &tensor, int64_t elements) {
        if (status || tensor.data == nullptr) return;
        if (tensor.size != elements) {
            status = fail(HEED_INVALID_ARGUMENT, "%s has %" PRId64 " elements; the layer's weight has %" PRId64, name,
                          tensor.size, elements);
            return;
        }
        const heed_dtype dtype = dtype_of_gradient(tensor, layer_.config.dtype);
        status = ranges_.add(name, tensor, dtype, elements, Access::write);
    }
    void refuse(const char *name, const heed_tensor &tensor, const char *why) {
        if (!status) status = heed::refuse(name, tensor, why);
    }

    void add_projections(const heed_layer_weights &w) {
        const heed_layer_config &c = layer_.config;
        const int64_t q = int64_t{c.num_heads} * c.head_dim, k = int64_t{c.num_kv_heads} * c.head_dim;
        const int64_t v = int64_t{c.num_kv_heads} * c.head_dim_v, all = q + k + v;
        const bool fused = c.weight_layout == HEED_WEIGHTS_FUSED;
        const auto expect_if = [&](bool has, const char *name, const heed_tensor &tensor, int64_t elements) {
            if (has) expect(name, tensor, elements);
            if (!has) refuse(name, tensor, "the layer's weight_layout has no such weight");
        };
        expect_if(fused, "dweights.wqkv", w.wqkv, all * c.dim_in);
        expect_if(fused, "dweights.bqkv", w.bqkv, all);
        expect_if(!fused, "dweights.wq", w.wq, q * c.dim_in);
        expect_if(!fused, "dweights.wk", w.wk, k * c.dim_memory);
        expect_if(!fused, "dweights.wv", w.wv, v * c.dim_memory);
        expect_if(!fused, "dweights.bq", w.bq, q);
        expect_if(!fused, "dweights.bk", w.bk, k);
        expect_if(!fused, "dweights.bv", w.bv, v);
        expect("dweights.wo", w.wo, int64_t{c.dim_out} * c.num_heads * c.head_dim_v);
        expect("dweights.bo", w.bo, c.dim_out);
    }

    void add_others(const heed_layer_weights &w) {
        const heed_layer &l = layer_;
        const std::tuple<const char *, const heed_tensor &, const LayerFloats &> norms[] = {
            {"dweights.q_norm_weight", w.q_norm_weight, l.q_norm_weight},
            {"dweights.q_norm_bias", w.q_norm_bias, l.q_norm_bias},
            {"dweights.k_norm_weight", w.k_norm_weight, l.k_norm_weight},
            {"dweights.k_norm_bias", w.k_norm_bias, l.k_norm_bias},
        };
        for (const auto &[name, tensor, weight] : norms) {
            if (!weight.empty()) expect(name, tensor, weight.size);
            if (weight.empty()) refuse(name, tensor, "the layer's qk_norm is HEED_QK_NORM_NONE");
        }
        if (l.sink.empty()) refuse("dweights.sink", w.sink, "the layer has no sink");
        if (!status && w.sink.data != nullptr) {
            status = ranges_.add("dweights.sink", w.sink, HEED_F32, l.config.num_heads, Access::write);
        }
        const char *const none = "layers have no gradients of it";
        refuse("dweights.alibi_slopes", w.alibi_slopes, none);
        refuse("dweights.rope_cos", w.rope_cos, none);
        refuse("dweights.rope_sin", w.rope_sin, none);
    }

private:
    const heed_layer &layer_;
    MemoryRanges &ranges_;
};

heed_status check_dbias(const Forward &f, const heed_layer_gradients &g, MemoryRanges *ranges) {
    const heed_layer_args &a = f.a;
    if (g.dbias.data == nullptr) return HEED_OK;
    if (a.bias.data == nullptr) return refuse("dbias", g.dbias, "the call has no bias");
    Shape shape = {{a.batch, f.config().num_heads, a.q_len, f.longest}};
    for (int n = 0; n < 4; n++) {
        if (a.bias_shape[n] == 1) shape.extent[n] = 1;
    }
    View view;
    const heed_status status = make_view("dbias", shape, a.bias_layout, Access::write, &view);
    return status ? status : ranges->add("dbias", g.dbias, a.bias.dtype, view.span, Access::write);
}

// Clears what `hidden(b, t)` says of [batch, len, bytes].
template <typename Hidden>
void clear_rows(int32_t batch, int32_t len, int64_t bytes, const Hidden &hidden, char *rows) {
    for (int64_t b = 0; b < batch; b++) {
        for (int32_t t = 0; t < len; t++) {
            if (hidden(b, t)) std::memset(rows + (b * len + t) * bytes, 0, static_cast<size_t>(bytes));
        }
    }
}

heed_status copy_rows(const Backward &b, const void *data, int64_t bytes, HeapArray<char> *copy) {
    const heed_status status = copy->allocate(b.run.name, bytes);
    if (!status) std::memcpy(copy->data(), data, static_cast<size_t>(bytes));
    return status;
}

}  // namespace

heed_status check_gradients(const Forward &f, const heed_layer_gradients &g) {
    const heed_layer_config &c = f.config();
    const heed_layer_args &a = f.a;
    if (a.cache != nullptr) {
        return fail(HEED_UNSUPPORTED, "cache is not NULL; heed_layer_backward serves calls without a cache");
    }
    heed_status status =
        check_struct_size("heed_layer_gradients.dweights", g.dweights.struct_size, sizeof(heed_layer_weights));
    if (!status && !c.cross) status = refuse("dmemory", g.dmemory, "a self attention layer attends to x");
    MemoryRanges ranges;
    const int64_t rows = int64_t{a.batch} * a.q_len;
    if (!status && g.dx.data != nullptr) status = ranges.add("dx", g.dx, c.dtype, rows * c.dim_in, Access::write);
    if (!status && g.dmemory.data != nullptr) {
        const int64_t elements = int64_t{a.batch} * a.memory_len * c.dim_memory;
        status = ranges.add("dmemory", g.dmemory, c.dtype, elements, Access::write);
    }
    if (!status) status = check_dbias(f, g, &ranges);
    WeightChecks weights(f.layer, &ranges);
    weights.status = status;
    weights.add_projections(g.dweights);
    weights.add_others(g.dweights);
    status = weights.status;
    if (!status) status = ranges.add("dy", g.dy, c.dtype, rows * c.dim_out, Access::read);
    return status ? status : add_inputs(f, &ranges);
}

heed_status take_sources(Backward *b) {
    const heed_layer_config &c = b->config();
    const heed_layer_args &a = b->f.a;
    const LayerMemory &m = b->run.memory;
    const int64_t bytes = dtype_bytes(c.dtype);
    const auto *const padding = static_cast<const uint8_t *>(a.key_padding.data);
    const int32_t q_columns = c.num_heads * c.head_dim;
    const int32_t kv_columns = c.num_kv_heads * (c.head_dim + c.head_dim_v);
    b->x.size = {b->rows(), c.dim_in, q_columns + (c.cross ? 0 : kv_columns)};
    b->x.data = a.x.data;
    b->dy = b->g.dy.data;
    heed_status status = HEED_OK;
    if (a.q_lens != nullptr) {
        const auto behind = [&](int64_t n, int32_t t) { return t >= m.new_lens[n]; };
        status = copy_rows(*b, b->x.data, b->rows() * c.dim_in * bytes, &b->x.copy);
        if (!status) status = copy_rows(*b, b->dy, b->rows() * c.dim_out * bytes, &b->dy_copy);
        if (status) return status;
        clear_rows(a.batch, a.q_len, c.dim_in * bytes, behind, b->x.copy.data());
        clear_rows(a.batch, a.q_len, c.dim_out * bytes, behind, b->dy_copy.data());
        b->x.data = b->x.copy.data();
        b->dy = b->dy_copy.data();
    }
    if (!c.cross) return status;
    b->memory.size = {b->key_rows(), c.dim_memory, kv_columns};
    b->memory.data = a.memory.data;
    if (a.kv_lens == nullptr && padding == nullptr) return status;
    const auto hidden = [&](int64_t n, int32_t t) {
        const bool padded = padding != nullptr && (padding[n * a.memory_len + t] != 0) == c.mask_true_hides;
        return padded || t >= m.kv_lens[n];
    };
    status = copy_rows(*b, b->memory.data, b->key_rows() * c.dim_memory * bytes, &b->memory.copy);
    if (status) return status;
    clear_rows(a.batch, a.memory_len, c.dim_memory * bytes, hidden, b->memory.copy.data());
    b->memory.data = b->memory.copy.data();
    return HEED_OK;
}

}  // namespace heed
