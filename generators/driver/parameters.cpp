#include "generators/driver/parameters.h"

#include <algorithm>

#include "generators/table/words.h"

namespace heed {
namespace {

using C = AttentionConfig;

Parameter one_of(const char *name, int C::*value, std::vector<int> values) {
    return {name, value, std::move(values), nullptr, nullptr, 0};
}

Parameter multiple(const char *name, int C::*value, const char *of, int C::*unit, int most_factor) {
    return {name, value, {}, of, unit, most_factor};
}

// Multiples of the widest vector, so that they fit any.
const std::vector<int> masked_blocks = {16, 32, 48, 64, 96, 128, 144};

std::vector<Parameter> row_lanes_parameters(const C &config) {
    if (config.bf16_tiles) {
        return {multiple("row_block", &C::row_block, "lanes", &C::lanes, 8),
                one_of("masked_block", &C::masked_block, {32, 64, 96, 128}),
                multiple("kv_block", &C::kv_block, "masked_block", &C::masked_block, config.packs_in_steps() ? 1 : 8)};
    }
    std::vector<Parameter> list;
    if (!config.bf16_dots) list.push_back(one_of("lanes", &C::lanes, {4, 8, 16}));
    list.insert(list.end(), {multiple("row_block", &C::row_block, "lanes", &C::lanes, 6),
                             one_of("masked_block", &C::masked_block, masked_blocks),
                             multiple("kv_block", &C::kv_block, "masked_block", &C::masked_block, 8),
                             one_of("key_tile", &C::key_tile, {1, 2, 4, 8, 16}),
                             one_of("value_tile", &C::value_tile, {1, 2, 4, 8, 16})});
    list.push_back(one_of("product_unroll", &C::product_unroll, {1, 2, 4, 8}));
    if (!config.bf16_dots) list.push_back(one_of("value_unroll", &C::value_unroll, {1, 2, 4}));
    return list;
}

std::vector<Parameter> head_lanes_parameters(const C &config) {
    std::vector<Parameter> list = {one_of("masked_block", &C::masked_block, masked_blocks),
                                   multiple("kv_block", &C::kv_block, "masked_block", &C::masked_block, 16),
                                   one_of("key_tile", &C::key_tile, {1, 2, 4, 8}),
                                   one_of("value_keys", &C::value_keys, {8, 16, 32, 64, 128, 256})};
    if (!config.any_head_dim()) {
        list.push_back(one_of("value_vectors", &C::value_vectors, {1, 2, 4, 8}));
        if (config.has_gqa) {
            list.push_back(one_of("value_rows", &C::value_rows, {1, 2, 4, 8}));
            list.push_back(multiple("row_block", &C::row_block, "value_rows", &C::value_rows, 4));
        }
    }
    if (!config.copies_k() && !config.copies_v()) {
        list.push_back(one_of("prefetch_keys", &C::prefetch_keys, {0, 2, 4, 8, 16, 32, 64}));
        if (config.task_blocks > 1) list.push_back(one_of("whole_keys", &C::whole_keys, {0, 1, 2, 4, 8}));
    }
    return list;
}

std::string joined(const std::vector<int> &values) { return table::joined(table::texts(values), ", "); }

bool allows(const Parameter &p, const C &config, int value) {
    if (!p.values.empty()) return std::count(p.values.begin(), p.values.end(), value) != 0;
    const int unit = config.*p.unit;
    return value > 0 && value % unit == 0 && value / unit <= p.most_factor;
}

}  // namespace

std::vector<Parameter> parameters_of(const C &config) {
    return config.rows_are_lanes() ? row_lanes_parameters(config) : head_lanes_parameters(config);
}

void read_parameters(Options &options, C &config) {
    for (const Parameter &p : parameters_of(config)) {
        if (!options.has(p.name)) continue;
        const int value = options.number(p.name);
        if (!allows(p, config, value)) {
            throw BadInput(std::string(p.name) + " = " + std::to_string(value) + " is not allowed: " +
                           (p.values.empty() ? p.multiple_of + (" (" + std::to_string(config.*p.unit)) + ") times 1.." +
                                                   std::to_string(p.most_factor)
                                             : joined(p.values)));
        }
        config.*p.value = value;
    }
}

std::string describe_parameters(const C &config) {
    std::string text;
    for (const Parameter &p : parameters_of(config)) {
        text += (text.empty() ? "{\"" : ", \"") + std::string(p.name) +
                "\": {\"default\": " + std::to_string(config.*p.value) + ", ";
        text += p.values.empty() ? "\"multiple_of\": \"" + std::string(p.multiple_of) +
                                       "\", \"unit\": " + std::to_string(config.*p.unit) +
                                       ", \"most_factor\": " + std::to_string(p.most_factor)
                                 : "\"values\": [" + joined(p.values) + "]";
        text += "}";
    }
    return text + "}";
}

}  // namespace heed
