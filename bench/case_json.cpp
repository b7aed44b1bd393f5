#include "bench/case_json.h"

#include <array>
#include <stdexcept>
#include <string>

namespace heed_bench {

namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t largest_size = 1 << 24;

// The value whose name is the field's; the first one without the field.
template <class Value>
Value named(const Json &json, const char *field, int count, const char *(*name_of)(Value)) {
    const std::string name = json.value(field, name_of(Value{}));
    for (int n = 0; n < count; n++) {
        if (name == name_of(static_cast<Value>(n))) {
            return static_cast<Value>(n);
        }
    }
    throw std::invalid_argument("no " + std::string(field) + " " + name);
}

int32_t size(const Json &json, const char *field) {
    const int64_t value = json.at(field);
    if (value < 1 || value > largest_size) {
        throw std::invalid_argument(std::string(field) + " is " + std::to_string(value) + "; it must be 1.." +
                                    std::to_string(largest_size));
    }
    return static_cast<int32_t>(value);
}

}  // namespace

Json case_json(const Case &c) {
    return {{"case", c.name},
            {"suite", c.suite},
            {"kind", kind_name(c.kind)},
            {"batch", c.batch},
            {"num_heads", c.num_heads},
            {"num_kv_heads", c.num_kv_heads},
            {"q_len", c.q_len},
            {"kv_len", c.kv_len},
            {"head_dim", c.head_dim},
            {"head_dim_v", c.head_dim_v},
            {"causal", c.causal},
            {"window_left", c.window_left},
            {"layout", layout_name(c.layout)},
            {"softcap", c.softcap},
            {"has_alibi", c.has_alibi},
            {"temperature_growth", c.temperature_growth},
            {"temperature_interval", c.temperature_interval},
            {"dropout_p", c.dropout_p},
            {"mask", mask_name(c.mask)},
            {"mask_shape", mask_shape(c)}};
}

Case case_of(const Json &json) {
    Case c;
    c.name = json.at("case");
    c.suite = "shape";
    c.batch = size(json, "batch");
    c.num_heads = size(json, "num_heads");
    c.num_kv_heads = size(json, "num_kv_heads");
    c.q_len = size(json, "q_len");
    c.kv_len = size(json, "kv_len");
    c.head_dim = size(json, "head_dim");
    c.head_dim_v = json.contains("head_dim_v") ? size(json, "head_dim_v") : c.head_dim;
    c.kind = c.q_len == 1 ? CaseKind::decode : CaseKind::prefill;
    c.causal = json.value("causal", c.causal);
    c.window_left = json.value("window_left", c.window_left);
    c.layout = named(json, "layout", num_layouts, layout_name);
    c.softcap = json.value("softcap", c.softcap);
    c.has_alibi = json.value("has_alibi", c.has_alibi);
    c.temperature_growth = json.value("temperature_growth", c.temperature_growth);
    c.temperature_interval = json.value("temperature_interval", c.temperature_interval);
    c.dropout_p = json.value("dropout_p", c.dropout_p);
    c.mask = named(json, "mask", num_masks, mask_name);
    const Json known = case_json(c);
    for (const auto &field : json.items()) {
        if (!known.contains(field.key())) {
            throw std::invalid_argument("a case has no field " + field.key());
        }
    }
    return c;
}

}  // namespace heed_bench
