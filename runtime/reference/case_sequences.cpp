#include "runtime/reference/case_sequences.h"

#include <algorithm>
#include <limits>

namespace heed_reference {
namespace {

// A mask or bias read by index, its broadcast axes at 0.
int64_t offset_of(const int32_t (&shape)[4], int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t at[4] = {b, h, i, j};
    int64_t offset = 0;
    for (int n = 0; n < 4; n++) offset = offset * shape[n] + (shape[n] == 1 ? 0 : at[n]);
    return offset;
}

bool is_minus_infinity(const Case &c, int64_t index) {
    const Array &bias = c.arrays.at("bias");
    if (c.problem.bias_dtype == HEED_F32) return bias.as<float>()[index] == -std::numeric_limits<float>::infinity();
    return bias.as<uint16_t>()[index] == (c.problem.bias_dtype == HEED_F16 ? 0xfc00 : 0xff80);
}

// Those of the keys begin..end-1 that mask and bias let query i of head h see.
int64_t count_unmasked(const Case &c, int64_t b, int64_t h, int64_t i, int64_t begin, int64_t end) {
    const heed_problem &p = c.problem;
    int64_t count = 0;
    for (int64_t j = begin; j < end; j++) {
        bool visible = true;
        if (p.has_mask) {
            const uint8_t element = c.arrays.at("mask").data[static_cast<size_t>(offset_of(p.mask_shape, b, h, i, j))];
            visible = (element != 0) != p.mask_true_hides;
        }
        if (p.has_bias) visible = visible && !is_minus_infinity(c, offset_of(p.bias_shape, b, h, i, j));
        count += visible ? 1 : 0;
    }
    return count;
}

}  // namespace

Sequence sequence_of(const Case &c, int64_t b) {
    const heed_problem &p = c.problem;
    const auto value = [&](const char *name, int64_t index) -> int64_t {
        return c.arrays.at(name).as<int32_t>()[index];
    };
    Sequence s{p.max_q_len, p.max_kv_len, 0, 0, 0};
    if (p.q_storage == HEED_Q_VARLEN) {
        s.first_q = value("cu_seqlens_q", b);
        s.q_len = value("cu_seqlens_q", b + 1) - s.first_q;
    }
    if (p.kv_storage == HEED_KV_VARLEN) {
        s.first_key = value("cu_seqlens_kv", b);
        s.kv_len = value("cu_seqlens_kv", b + 1) - s.first_key;
    }
    if (p.has_kv_lens) s.kv_len = value("kv_lens", b);
    if (p.position == HEED_BOTTOM_RIGHT) s.offset = s.kv_len - s.q_len;
    if (p.position == HEED_EXPLICIT) s.offset = value("q_offsets", b);
    return s;
}

int64_t visible_pairs(const Case &c) {
    const heed_problem &p = c.problem;
    // Heads that see alike are counted once.
    const bool alike = (!p.has_mask || p.mask_shape[1] == 1) && (!p.has_bias || p.bias_shape[1] == 1);
    const int64_t num_heads = alike ? std::min(p.num_heads, 1) : p.num_heads;
    int64_t pairs = 0;
    for (int64_t b = 0; b < p.batch; b++) {
        const Sequence s = sequence_of(c, b);
        for (int64_t i = 0; i < s.q_len; i++) {
            const int64_t position = i + s.offset;
            int64_t begin = 0, end = s.kv_len;
            if (p.window_left >= 0) begin = std::max(begin, position - p.window_left);
            if (p.window_right >= 0) end = std::min(end, position + p.window_right + 1);
            if (p.causal) end = std::min(end, position + 1);
            if (!p.has_mask && !p.has_bias) {
                pairs += std::max<int64_t>(end - begin, 0) * num_heads;
                continue;
            }
            for (int64_t h = 0; h < num_heads; h++) pairs += count_unmasked(c, b, h, i, begin, end);
        }
    }
    return alike && p.num_heads > 0 ? pairs * p.num_heads : pairs;
}

}  // namespace heed_reference
