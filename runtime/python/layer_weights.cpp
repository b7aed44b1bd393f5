#include <algorithm>

#include <nanobind/stl/string.h>

#include "heed/fields.h"
#include "runtime/python/array.h"
#include "runtime/python/errors.h"
#include "runtime/python/layer.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

struct Weight {
    const char *name;
    heed_tensor heed_layer_weights::*tensor;
};

constexpr Weight weight_fields[] = {{"wq", &heed_layer_weights::wq},
                                    {"wk", &heed_layer_weights::wk},
                                    {"wv", &heed_layer_weights::wv},
                                    {"wqkv", &heed_layer_weights::wqkv},
                                    {"wo", &heed_layer_weights::wo},
                                    {"bq", &heed_layer_weights::bq},
                                    {"bk", &heed_layer_weights::bk},
                                    {"bv", &heed_layer_weights::bv},
                                    {"bqkv", &heed_layer_weights::bqkv},
                                    {"bo", &heed_layer_weights::bo},
                                    {"q_norm_weight", &heed_layer_weights::q_norm_weight},
                                    {"q_norm_bias", &heed_layer_weights::q_norm_bias},
                                    {"k_norm_weight", &heed_layer_weights::k_norm_weight},
                                    {"k_norm_bias", &heed_layer_weights::k_norm_bias},
                                    {"rope_cos", &heed_layer_weights::rope_cos},
                                    {"rope_sin", &heed_layer_weights::rope_sin},
#define HEED_WEIGHT(name, ...) {#name, &heed_layer_weights::name},
                                    HEED_HEAD_ARRAYS(HEED_WEIGHT)
#undef HEED_WEIGHT
};

const Weight &field_of(const std::string &name) {
    std::string known;
    for (const Weight &field : weight_fields) {
        if (name == field.name) return field;
        known += std::string(known.empty() ? "" : ", ") + field.name;
    }
    refuse("weights has the name '%s'; it must be one of %s", name.c_str(), known.c_str());
}

using Extents = std::vector<int64_t>;

// The shapes of a weight of einsum: one head may go without its axis.
std::vector<Extents> per_head_shapes(int64_t heads, int64_t rows, int64_t columns) {
    if (heads == 1) return {{heads, rows, columns}, {rows, columns}};
    return {{heads, rows, columns}};
}

// The shapes that the weight `name` may have.
std::vector<Extents> allowed_shapes(const std::string &name, const heed_layer_config &c) {
    const int64_t q = c.num_heads, kv = c.num_kv_heads, d = c.head_dim, e = c.head_dim_v;
    const int64_t rows = q * d + kv * d + kv * e, pairs = c.rotary_dim / 2;
    const bool per_head = c.qk_norm == HEED_QK_NORM_HEAD;
    if (c.weight_layout == HEED_WEIGHTS_EINSUM) {
        if (name == "wq") return per_head_shapes(q, c.dim_in, d);
        if (name == "wk") return per_head_shapes(kv, c.dim_context, d);
        if (name == "wv") return per_head_shapes(kv, c.dim_context, e);
        if (name == "wo") return per_head_shapes(q, c.dim_out, e);
    }
    if (name == "wq") return {{q * d, c.dim_in}};
    if (name == "wk") return {{kv * d, c.dim_context}};
    if (name == "wv") return {{kv * e, c.dim_context}};
    if (name == "wo") return {{c.dim_out, q * e}};
    if (name == "wqkv") return {{rows, c.dim_in}};
    if (name == "bq") return {{q * d}, {q, d}};
    if (name == "bk") return {{kv * d}, {kv, d}};
    if (name == "bv") return {{kv * e}, {kv, e}};
    if (name == "bqkv") return {{rows}};
    if (name == "bo") return {{c.dim_out}};
    if (name == "q_norm_weight" || name == "q_norm_bias") return {{per_head ? d : q * d}};
    if (name == "k_norm_weight" || name == "k_norm_bias") return {{per_head ? d : kv * d}};
    if (name == "rope_cos" || name == "rope_sin") return {{c.max_position, pairs}};
    return {{q}};  // HEED_HEAD_ARRAYS
}

}  // namespace

LayerWeightArrays::LayerWeightArrays(const nb::dict &weights) {
    for (const auto [key, value] : weights) {
        const auto name = nb::cast<std::string>(key);
        heed_tensor &target = weights_.*field_of(name).tensor;
        sources_.push_back(nb::borrow(value));
        if (nb::isinstance<StoredTensor>(value)) {
            const auto &stored = nb::cast<const StoredTensor &>(value);
            target = stored.tensor.tensor;
            shapes_.push_back({name, stored.tensor.shape});
            continue;
        }
        const Array array = import_array(name, value, Access::read);
        array.check_packed();
        array.check_on(HEED_CPU);
        target = array.tensor;
        shapes_.push_back({name, {array.shape, array.shape + array.rank}});
    }
}

heed_dtype LayerWeightArrays::dtype() const {
    return weights_.wqkv.data != nullptr ? weights_.wqkv.dtype : weights_.wq.dtype;
}

void LayerWeightArrays::check_shapes(const heed_layer_config &config) const {
    for (const Shape &shape : shapes_) {
        const std::vector<Extents> allowed = allowed_shapes(shape.name, config);
        if (std::find(allowed.begin(), allowed.end(), shape.extents) != allowed.end()) continue;
        refuse("%s has the shape %s; it must be %s", shape.name.c_str(),
               shape_text(shape.extents.data(), shape.extents.size()).c_str(),
               shape_text(allowed[0].data(), allowed[0].size()).c_str());
    }
}

LayerGradientArrays::LayerGradientArrays(const nb::dict &given, const LayerCall &call,
                                         const heed_layer_config &config) {
    gradients_.struct_size = sizeof(gradients_);
    gradients_.dweights.struct_size = sizeof(gradients_.dweights);
    const Array &x = *call.find("x");
    arrays_.reserve(given.size());
    for (const auto [key, value] : given) {
        const auto name = nb::cast<std::string>(key);
        arrays_.push_back(import_array(name, value, name == "dy" ? Access::read : Access::write));
        const Array &array = arrays_.back();
        array.check_device(x);
        if (name == "dbias") {
            if (call.find("bias") == nullptr) refuse("dbias is given; the call has no bias");
            array.check_like(*call.find("bias"));
            gradients_.dbias = array.tensor;
            continue;
        }
        array.check_packed();
        if (name == "dy") {
            array.check_shape(x.shape_with_last(config.dim_out), "[batch, q_len, dim_out]");
            gradients_.dy = array.tensor;
        } else if (name == "dx") {
            array.check_like(x);
            gradients_.dx = array.tensor;
        } else if (name == "dcontext") {
            if (call.find("context") == nullptr) refuse("dcontext is given; the call has no context");
            array.check_like(*call.find("context"));
            gradients_.dcontext = array.tensor;
        } else {
            gradients_.dweights.*field_of(name).tensor = array.tensor;
        }
    }
    if (gradients_.dy.data == nullptr && x.tensor.size > 0) refuse("dy is missing");
}

size_t LayerGradientArrays::dbias_bytes() const {
    return (static_cast<size_t>(gradients_.dbias.size) * sizeof(float) + 127) / 128 * 128;
}

}  // namespace heed::python
