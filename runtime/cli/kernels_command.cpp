#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "generators/contract/fields.h"
#include "heed/fields.h"
#include "heed/heed.hpp"
#include "runtime/cli/commands.h"
#include "runtime/names/near_names.h"

namespace heed_cli {

#define HEED_WORD(value, word) word,
const std::vector<std::string> dtype_words = {HEED_DTYPE_WORDS(HEED_WORD)}, isa_words = {HEED_ISA_WORDS(HEED_WORD)};
#undef HEED_WORD

namespace {

using nlohmann::json;
using Row = std::vector<json>;

json dim_of(int32_t dim) { return dim == 0 ? json("any") : json(dim); }

// As the names of kernels have them, "alibi_bias_gqa"; "-" for none.
std::string features_text(uint32_t features) {
    std::vector<std::string> words;
#define HEED_ADD_WORD(name, bit)                                                                                       \
    if (features & heed::feature_##name) words.emplace_back(#name);
    HEED_FEATURES(HEED_ADD_WORD)
#undef HEED_ADD_WORD
    std::sort(words.begin(), words.end());
    std::string text;
    for (const std::string &word : words) text += (text.empty() ? "" : "_") + word;
    return text.empty() ? "-" : text;
}

// For heed_kernel_info and heed_op_info.
template <typename Info>
std::vector<Info> filtered(std::vector<Info> all, const KernelFilter &filter) {
    const auto fails = [&](const Info &info) {
        return (!filter.isa.empty() && filter.isa != heed_isa_word(info.isa)) ||
               (!filter.dtype.empty() && filter.dtype != heed_dtype_word(info.dtype)) ||
               std::string(info.name).find(filter.name) == std::string::npos || (filter.here && !info.supported);
    };
    all.erase(std::remove_if(all.begin(), all.end(), fails), all.end());
    return all;
}

// True, or why not.
template <typename Info>
json here_of(const Info &info) {
    return info.supported ? json(true) : json(info.unsupported_reason);
}

// A sentence for a part that no name has.
void check_name(const std::string &part) {
    std::vector<std::string> names;
    for (const heed_kernel_info &info : heed::kernels()) names.emplace_back(info.name);
    for (const heed_op_info &info : heed::operations()) names.emplace_back(info.name);
    const auto has_part = [&](const std::string &name) { return name.find(part) != std::string::npos; };
    if (std::any_of(names.begin(), names.end(), has_part)) return;
    throw InvalidInput("--name is \"" + part + "\"; it must be a part of the name of a kernel" +
                       heed::near_names(part, names));
}

std::string text_of(const json &value) {
    if (value == true) return "yes";
    return value.is_string() ? value.get<std::string>() : value.dump();
}

void print_table(const std::vector<Row> &rows) {
    Row::size_type columns = rows[0].size();
    std::vector<size_t> widths(columns);
    for (const Row &row : rows) {
        for (size_t i = 0; i < columns; i++) widths[i] = std::max(widths[i], text_of(row[i]).size());
    }
    for (const Row &row : rows) {
        for (size_t i = 0; i + 1 < columns; i++) {
            std::printf("%-*s  ", static_cast<int>(widths[i]), text_of(row[i]).c_str());
        }
        std::printf("%s\n", text_of(row.back()).c_str());
    }
}

const char *phase_word(heed_phase phase) { return phase == HEED_PREFILL ? "prefill" : "decode"; }

Row row_of(const heed_kernel_info &k) {
    return {k.name,
            phase_word(k.phase),
            heed_dtype_word(k.dtype),
            heed_dtype_word(k.kv_dtype),
            dim_of(k.head_dim),
            dim_of(k.head_dim_v),
            features_text(k.features),
            heed_isa_word(k.isa),
            k.code_bytes,
            here_of(k)};
}

Row row_of(const heed_op_info &op) {
    return {op.name, op.op,      heed_dtype_word(op.dtype), heed_dtype_word(op.kv_dtype),
            op.rows, op.columns, heed_isa_word(op.isa),     here_of(op)};
}

const Row kernel_columns = {"name",       "phase",    "dtype", "kv",         "head_dim",
                            "head_dim_v", "features", "isa",   "code_bytes", "here"};
const Row op_columns = {"name", "operation", "dtype", "kv", "rows", "columns", "isa", "here"};

json json_of(const Row &columns, const Row &row) {
    json object;
    for (size_t i = 0; i < columns.size(); i++) object[columns[i].get<std::string>()] = row[i];
    object["here"] = row.back() == true;
    object["why_not"] = row.back() == true ? json("") : row.back();
    return object;
}

}  // namespace

int list_kernels(const KernelFilter &filter) {
    check_name(filter.name);
    std::vector<Row> kernels = {kernel_columns}, operations = {op_columns};
    for (const heed_kernel_info &info : filtered(heed::kernels(), filter)) kernels.push_back(row_of(info));
    for (const heed_op_info &info : filtered(heed::operations(), filter)) operations.push_back(row_of(info));
    if (!filter.json) {
        print_table(kernels);
        std::printf("\n");
        print_table(operations);
        return exit_ok;
    }
    json all = {{"kernels", json::array()}, {"operations", json::array()}};
    for (size_t i = 1; i < kernels.size(); i++) all["kernels"].push_back(json_of(kernel_columns, kernels[i]));
    for (size_t i = 1; i < operations.size(); i++) all["operations"].push_back(json_of(op_columns, operations[i]));
    std::printf("%s\n", all.dump(1).c_str());
    return exit_ok;
}

}  // namespace heed_cli
