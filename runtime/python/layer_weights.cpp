#include <algorithm>

#include "array.h"
#include <nanobind/stl/string.h>

#include "errors.h"
#include "layer.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

struct Weight {
    const char *name;
    heed_tensor heed_layer_weights::*tensor;
};

constexpr Weight weight_fields[] = {
    {"wq", &heed_layer_weights::wq},
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
    {"alibi_slopes", &heed_layer_weights::alibi_slopes},
    {"sink", &heed_layer_weights::sink},
};

const Weight &field_of(const std::string &name) {
    std::string known;
    for (const Weight &field : weight_fields) {
        if (name == field.name) return field;
        known += std::string(known.empty() ? "" : ", ") + field.name;
    }
    refuse("weights has the name '%s'; it must be one of %s", name.c_str(), known.c_str());
}

// The matrix `name` of the config's layout; empty for what has one axis only.
std::vector<int64_t> expected_shape(const std::string &name, const heed_layer_config &c) {
    const int64_t q = c.num_heads, kv = c.num_kv_heads, d = c.head_dim, e = c.head_dim_v;
    if (name == "wqkv") return {q * d + kv * d + kv * e, c.dim_in};
    if (c.weight_layout == HEED_WEIGHTS_EINSUM) {
        if (name == "wq") return {q, c.dim_in, d};
        if (name == "wk") return {kv, c.dim_memory, d};
        if (name == "wv") return {kv, c.dim_memory, e};
        if (name == "wo") return {q, c.dim_out, e};
        return {};
    }
    if (name == "wq") return {q * d, c.dim_in};
    if (name == "wk") return {kv * d, c.dim_memory};
    if (name == "wv") return {kv * e, c.dim_memory};
    if (name == "wo") return {c.dim_out, q * e};
    return {};
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
        std::vector<int64_t> expected = expected_shape(shape.name, config);
        if (expected.empty() || shape.extents == expected) continue;
        const bool one_head = config.weight_layout == HEED_WEIGHTS_EINSUM && expected.front() == 1;
        if (one_head && std::equal(expected.begin() + 1, expected.end(), shape.extents.begin(), shape.extents.end())) {
            continue;
        }
        refuse("%s has the shape %s; it must be %s", shape.name.c_str(),
               shape_text(shape.extents.data(), shape.extents.size()).c_str(),
               shape_text(expected.data(), expected.size()).c_str());
    }
}

}  // namespace heed::python
