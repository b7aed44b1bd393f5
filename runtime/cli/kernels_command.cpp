#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "generators/contract/fields.h"
#include "heed/fields.h"
#include "heed/heed.hpp"
#include "runtime/cli/commands.h"

namespace heed_cli {

#define HEED_WORD(value, word) word,
const std::vector<std::string> dtype_words = {HEED_DTYPE_WORDS(HEED_WORD)}, isa_words = {HEED_ISA_WORDS(HEED_WORD)};
#undef HEED_WORD

namespace {

using Row = std::vector<std::string>;

std::string dim_text(int32_t dim) { return dim == 0 ? "any" : std::to_string(dim); }

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

template <typename Info>
std::string here_text(const Info &info) {
    return info.supported ? "yes" : info.unsupported_reason;
}

void print_table(const std::vector<Row> &rows) {
    Row::size_type columns = rows[0].size();
    std::vector<size_t> widths(columns);
    for (const Row &row : rows) {
        for (size_t i = 0; i < columns; i++) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const Row &row : rows) {
        for (size_t i = 0; i + 1 < columns; i++) std::printf("%-*s  ", static_cast<int>(widths[i]), row[i].c_str());
        std::printf("%s\n", row.back().c_str());
    }
}

const char *phase_word(heed_phase phase) { return phase == HEED_PREFILL ? "prefill" : "decode"; }

Row row_of(const heed_kernel_info &k) {
    return {k.name,
            phase_word(k.phase),
            heed_dtype_word(k.dtype),
            heed_dtype_word(k.kv_dtype),
            dim_text(k.head_dim),
            dim_text(k.head_dim_v),
            features_text(k.features),
            heed_isa_word(k.isa),
            std::to_string(k.code_bytes),
            here_text(k)};
}

Row row_of(const heed_op_info &op) {
    return {op.name,
            op.op,
            heed_dtype_word(op.dtype),
            heed_dtype_word(op.kv_dtype),
            std::to_string(op.rows),
            std::to_string(op.columns),
            heed_isa_word(op.isa),
            here_text(op)};
}

const Row kernel_columns = {"name",       "phase",    "dtype", "kv",         "head_dim",
                            "head_dim_v", "features", "isa",   "code_bytes", "here"};
const Row op_columns = {"name", "operation", "dtype", "kv", "rows", "columns", "isa", "here"};

nlohmann::json json_of(const Row &columns, const Row &row) {
    nlohmann::json object;
    for (size_t i = 0; i < columns.size(); i++) object[columns[i]] = row[i];
    return object;
}

}  // namespace

int list_kernels(const KernelFilter &filter) {
    std::vector<Row> kernels = {kernel_columns}, operations = {op_columns};
    for (const heed_kernel_info &info : filtered(heed::kernels(), filter)) kernels.push_back(row_of(info));
    for (const heed_op_info &info : filtered(heed::operations(), filter)) operations.push_back(row_of(info));
    if (!filter.json) {
        print_table(kernels);
        std::printf("\n");
        print_table(operations);
        return exit_ok;
    }
    nlohmann::json all = {{"kernels", nlohmann::json::array()}, {"operations", nlohmann::json::array()}};
    for (size_t i = 1; i < kernels.size(); i++) all["kernels"].push_back(json_of(kernel_columns, kernels[i]));
    for (size_t i = 1; i < operations.size(); i++) all["operations"].push_back(json_of(op_columns, operations[i]));
    std::printf("%s\n", all.dump(1).c_str());
    return exit_ok;
}

}  // namespace heed_cli
