// Numbered cases, each of which some attention library got wrong. Unless a case says otherwise: batch 2, 4 heads on 2,
// head_dim 64, f32, "causal" from the bottom right; every row of the table that serves head_dim 64.
#pragma once

#include <cmath>
#include <cstring>

#include "expect.h"

namespace heed_test {

class Adversarial : public KernelTest {
protected:
    static constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
    static constexpr float inf_value = std::numeric_limits<float>::infinity();

    static Shape shape(int32_t q_len, int32_t kv_len) { return {2, 4, 2, q_len, kv_len, 64, 64}; }
    static Attention normal(int32_t q_len, int32_t kv_len) {
        return make_attention(shape(q_len, kv_len), Data::normal, static_cast<uint64_t>(1000 * q_len + kv_len));
    }
    static Attention causal(int32_t q_len, int32_t kv_len) {
        Attention a = normal(q_len, kv_len);
        a.causal = true;
        a.position = HEED_BOTTOM_RIGHT;
        return a;
    }
    static Attention exact_causal(int32_t q_len, int32_t kv_len) {
        Attention a = causal(q_len, kv_len);
        make_exact_set(&a);
        return a;
    }
    int32_t block() const { return row().info.kv_block; }

    // The tile sizes of the library: keys, queries, and keys where some are hidden.
    std::vector<int32_t> tiles() const { return {block(), row().info.row_block, 16}; }
};

class AdversarialScores : public Adversarial {};  // rows with mask and bias

inline std::vector<Row> rows_of_64() { return rows_for({1, 1, 1, 1, 1, 64, 64}); }
inline std::vector<Row> score_rows_of_64() {
    return rows_for({1, 1, 1, 1, 1, 64, 64}, HEED_FEATURE_BIAS | HEED_FEATURE_MASK);
}

// One row per ISA and phase, where a case is about the runtime more than the kernel.
inline std::vector<Row> few_rows_of_64() {
    std::vector<Row> rows;
    for (const Row &row : rows_of_64()) {
        const uint32_t plain = row.decode() ? static_cast<uint32_t>(HEED_FEATURE_GQA) : 0;
        if (!row.any_head_dim() && row.info.features == plain) rows.push_back(row);
    }
    return rows;
}

}  // namespace heed_test
