#include "generators/attention/config.h"

#include <algorithm>

namespace heed {
namespace {

std::string out_of_range(const char *name, int value, const char *allowed) {
    return std::string(name) + " = " + std::to_string(value) + " is not allowed: " + allowed;
}

bool power_of_two(int x) { return x > 0 && (x & (x - 1)) == 0; }

}  // namespace

std::string AttentionConfig::error() const {
    const struct {
        const char *name;
        int value;
    } dims[] = {{"head_dim", head_dim}, {"head_dim_v", head_dim_v}};
    for (const auto &dim : dims) {
        if (dim.value < 0 || dim.value > max_head_dim) {
            return out_of_range(dim.name, dim.value, "1..640, or 0 for a kernel with run-time head dims");
        }
    }
    if ((head_dim == 0) != (head_dim_v == 0)) {
        return out_of_range("head_dim_v", head_dim_v, "0 exactly when head_dim is 0");
    }
    const bool widened = kv_dtype == ElementType::f32 && phase == Phase::prefill && !paged;
    if (dtype == ElementType::i8 || (kv_dtype != dtype && kv_dtype != ElementType::i8 && !widened)) {
        return std::string("kv_dtype = ") + name_of(kv_dtype) + " with dtype = " + name_of(dtype) +
               " is not allowed: dtype f32, f16 or bf16, kv_dtype the same or i8, in prefill of contiguous keys also "
               "f32";
    }
    if (bf16_dots && (dtype != ElementType::bf16 || kv_dtype != dtype || has_dropout)) {
        return "bf16_dots are not allowed but with bf16, without dropout";
    }
    if (bf16_dots && any_head_dim() && !rows_are_lanes()) {
        return "bf16_dots with head_dim any are not allowed but in prefill or schedule = wide";
    }
    if (wide_group && (phase != Phase::decode || !has_gqa)) {
        return "schedule = wide is not allowed but in decode, with the feature gqa";
    }
    if (for_whole_keys && (phase != Phase::decode || kv_dtype != dtype)) {
        return "schedule = whole is not allowed but in decode, with kv_dtype = dtype";
    }
    if (bf16_dots && (head_dim % 16 != 0 || head_dim_v % 16 != 0)) {
        return out_of_range("head_dim", head_dim % 16 != 0 ? head_dim : head_dim_v, "a multiple of 16 with bf16_dots");
    }
    if (bf16_dots && !rows_are_lanes() && head_dim % 32 != 0) {
        return out_of_range("head_dim", head_dim, "a multiple of 32, whole vectors of pairs, with bf16_dots in decode");
    }
    if (bf16_tiles && (!packs_kv() || row_block % 16 != 0 || masked_block % 32 != 0)) {
        return "bf16_tiles are not allowed but in prefill or schedule = wide, with bf16_dots, row_block a multiple of "
               "16, "
               "masked_block of 32";
    }
    if (!power_of_two(lanes) || lanes < 4 || lanes > 16) {
        return out_of_range("lanes", lanes, "4, 8 or 16");
    }
    if (!power_of_two(dot_lanes) || dot_lanes < 4 || dot_lanes > 16) {
        return out_of_range("dot_lanes", dot_lanes, "4, 8 or 16");
    }
    return "";
}

std::string AttentionConfig::block_error() const {
    if (reads_bias_pairs() && kv_block % packed_unit != 0) {
        return out_of_range("kv_block", kv_block, "a multiple of 32 where a bias is read in pairs");
    }
    if (packs_in_steps() && masked_block != kv_block) {
        return out_of_range("masked_block", masked_block, "kv_block where steps pack their blocks");
    }
    if (wide_group && (sweeps() || has_score_mod())) {
        return "schedule = wide is not allowed with mask, bias or a score function";
    }
    if (rows_are_lanes() && row_block % lanes != 0) {
        return out_of_range("row_block", row_block, "a multiple of lanes");
    }
    if (masked_block < 1 || kv_block % masked_block != 0) {
        return out_of_range("kv_block", kv_block, "a multiple of masked_block");
    }
    if (masked_block % lanes != 0) {
        return out_of_range("masked_block", masked_block, "a multiple of lanes");
    }
    if (row_block * kv_block > max_block_logits) {
        return out_of_range("kv_block", kv_block, "with row_block at most 16384 logits, which are in the stack frame");
    }
    const bool fits_lanes = key_tile > 0 && (lanes % key_tile == 0 || (rows_are_lanes() && key_tile % lanes == 0));
    if (!fits_lanes || masked_block % key_tile != 0) {
        return out_of_range("key_tile", key_tile, "a divisor of masked_block and of lanes, in prefill or a multiple");
    }
    return rows_are_lanes() ? row_lanes_error() : head_lanes_error();
}

std::string AttentionConfig::row_lanes_error() const {
    if (value_tile < 1 || padded(head_dim_v) % value_tile != 0) {
        return out_of_range("value_tile", value_tile, "a divisor of head_dim_v in whole vectors");
    }
    // Floats of run-time head dims end with a step of fewer elements.
    const int elements = any_head_dim() ? (bf16_dots ? lanes : 0) : query_elements();
    if (product_unroll < 1 || elements % product_unroll != 0) {
        return out_of_range("product_unroll", product_unroll, "a divisor of the elements of a row, or pairs of them");
    }
    if (value_unroll < 1 || kv_block % value_unroll != 0) {
        return out_of_range("value_unroll", value_unroll, "a divisor of kv_block");
    }
    return "";
}

std::string AttentionConfig::head_lanes_error() const {
    if (value_keys < 1 || kv_block % std::min(value_keys, kv_block) != 0 ||
        masked_block % std::min(value_keys, masked_block) != 0) {
        return out_of_range("value_keys", value_keys, "a divisor of kv_block and masked_block, or more than they are");
    }
    if (value_rows < 1 || row_block % value_rows != 0) {
        return out_of_range("value_rows", value_rows, "a divisor of row_block");
    }
    if (value_vectors < 1 || prefetch_keys < 0) {
        return "value_vectors must be 1 or more, prefetch_keys 0 or more";
    }
    if (for_whole_keys && whole_keys == 0) {
        return "schedule = whole is not allowed where rows of k and v are copied, or with mask, bias or a score "
               "function";
    }
    if (whole_keys < 0 || (whole_keys > 0 && (task_blocks == 1 || copies_k() || copies_v() || kv_block % whole_keys))) {
        return out_of_range("whole_keys", whole_keys,
                            "0, or a divisor of kv_block where rows of k and v are not copied");
    }
    return "";
}

}  // namespace heed
