#include <algorithm>
#include <cstdio>
#include <string>

#include "commands.h"
#include "generators/contract/fields.h"
#include "heed/heed.hpp"

namespace heed_cli {
namespace {

const char *dtype_word(heed_dtype dtype) {
    constexpr const char *words[] = {"f32", "f16", "bf16", "i8", "u8", "i32"};
    return dtype >= HEED_F32 && dtype <= HEED_I32 ? words[dtype] : "?";
}

std::string dim_text(int32_t dim) { return dim == 0 ? "any" : std::to_string(dim); }

// As the names of rows have them, "alibi_bias_gqa"; "-" for none.
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

}  // namespace

int list_kernels() {
    const std::vector<heed_kernel_info_t> rows = heed::kernels();
    size_t width = 4;
    for (const heed_kernel_info_t &row : rows) width = std::max(width, std::string(row.name).size());
    const int name_width = static_cast<int>(width);
    std::printf("%-*s  %-7s  %-5s  %-5s  %-8s  %-10s  %-35s  %s\n", name_width, "name", "phase", "dtype", "kv",
                "head_dim", "head_dim_v", "features", "here");
    for (const heed_kernel_info_t &row : rows) {
        std::printf("%-*s  %-7s  %-5s  %-5s  %-8s  %-10s  %-35s  %s\n", name_width, row.name,
                    row.phase == HEED_PREFILL ? "prefill" : "decode", dtype_word(row.dtype), dtype_word(row.kv_dtype),
                    dim_text(row.head_dim).c_str(), dim_text(row.head_dim_v).c_str(),
                    features_text(row.features).c_str(), row.supported ? "yes" : row.unsupported_reason);
    }
    return exit_ok;
}

}  // namespace heed_cli
