// Numbered cases, each of which some attention library got wrong. Unless a case says otherwise: batch 2, 4 heads on 2,
// head_dim 64, f32, "causal" from the bottom right; every kernel of the table that serves head_dim 64.
#pragma once

#include <cmath>
#include <cstring>

#include "runtime/reference/element.h"
#include "tests/support/expect.h"

namespace heed_test {

class Adversarial : public KernelTest {
protected:
    static constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
    static constexpr float inf_value = std::numeric_limits<float>::infinity();

    static Shape shape(int32_t q_len, int32_t kv_len) { return {2, 4, 2, q_len, kv_len, 64, 64}; }
    Attention normal(int32_t q_len, int32_t kv_len) const {
        return kernel().attention(shape(q_len, kv_len), Data::normal, static_cast<uint64_t>(1000 * q_len + kv_len));
    }
    Attention causal(int32_t q_len, int32_t kv_len) const {
        Attention a = normal(q_len, kv_len);
        a.causal = true;
        a.position = HEED_BOTTOM_RIGHT;
        return a;
    }
    CallOptions contiguous() const { return options().with_storage(HEED_Q_DENSE, HEED_KV_CONTIGUOUS); }

    // Whether a row of out is the row of v of key j, bit for bit except for the rounding of int8 values to 16 bits.
    static void expect_value_row(const Attention &a, const Result &result, int32_t b, int32_t i, int32_t h, int32_t j) {
        const float *v = a.v_row(b, j, h / a.group_size()), *out = result.out.data() + a.out_index(b, i, h);
        for (int32_t d = 0; d < a.head_dim_v; d++) {
            ASSERT_EQ(out[d], round_to(a.dtype, v[d])) << "batch " << b << ", query " << i << ", head " << h;
        }
    }

    // The tile sizes of the library: keys, queries, and keys where some are hidden.
    std::vector<int32_t> tiles() const { return {block(), kernel().info.row_block, 16}; }
};

class AdversarialScores : public Adversarial {};  // kernels with mask and bias

inline std::vector<TableKernel> kernels_of_64() { return kernels_for({1, 1, 1, 1, 1, 64, 64}); }
inline std::vector<TableKernel> score_kernels_of_64() {
    return kernels_for({1, 1, 1, 1, 1, 64, 64}, HEED_FEATURE_BIAS | HEED_FEATURE_MASK);
}

// One kernel per ISA and phase, where a case is about the runtime more than the kernel.
inline std::vector<TableKernel> few_kernels_of_64() {
    return only(kernels_of_64(), [](const TableKernel &kernel) {
        const uint32_t plain = kernel.decode() ? static_cast<uint32_t>(HEED_FEATURE_GQA) : 0;
        return kernel.leads() && !kernel.any_head_dim() && kernel.info.features == plain;
    });
}

}  // namespace heed_test
