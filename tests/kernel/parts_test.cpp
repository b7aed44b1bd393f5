// Blocks of rows whose keys leave the caches take turns with parts of them, where each thread has enough blocks for
// that. No bit depends on it.
#include <limits>
#include <string>

#include "tests/support/amx_emulator.h"
#include "tests/support/expect.h"

namespace heed_test {
namespace {

class Parts : public KernelTest {
protected:
    void SetUp() override {
        if (amx_is_emulated()) GTEST_SKIP() << "an emulated tile takes microseconds";
    }

    // Packed, two and a half parts.
    int32_t num_keys() const {
        const Shape shape = kernel().shape();
        const auto packed = [](int32_t length) { return (length + 31) / 32 * 32; };
        return (1900 << 10) / (2 * (packed(shape.head_dim) + packed(shape.head_dim_v)));
    }
    Attention attention() const { return grouped(3 * kernel().info.row_block + 9, num_keys(), 47); }

    // So many threads that none has two blocks of rows to take turns.
    CallOptions at_once() const { return options().with_threads(64); }

    void expect_no_change(const Attention &a, CallOptions in_parts, CallOptions whole) const {
        for (const bool want_lse : {true, false}) {
            in_parts.want_lse = whole.want_lse = want_lse;
            const Result expected = expect_runs(a, whole);
            for (const int32_t threads : {1, 2}) {
                expect_same_bits(expect_runs(a, in_parts.with_threads(threads)), expected);
            }
        }
    }
    void expect_no_change(const Attention &a) const { expect_no_change(a, options(), at_once()); }
};

std::string explained(const Attention &a, const CallOptions &options) {
    Call call(a, options);
    EXPECT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    return heed_plan_explain(call.plan());
}

TEST_P(Parts, AreCorrect) {
    Attention a = attention();
    EXPECT_NE(explained(a, options()).find("parts of "), std::string::npos);
    EXPECT_EQ(explained(a, at_once()).find("parts of "), std::string::npos);
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    expect_correct(a, options());
}

TEST_P(Parts, ChangeNoBit) {
    Attention a = attention();
    expect_no_change(a);
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    expect_no_change(a);
    a.window_left = a.kv_len - a.kv_len / 8;
    expect_no_change(a);
}

TEST_P(Parts, ChangeNoBitOfRaggedSequences) {
    Attention a = attention();
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    for (const int32_t shorter : {a.kv_len - 50, 300, 0}) {
        a.kv_lens = {shorter, a.kv_len - 3};
        expect_no_change(a);
        if (!kernel().paged()) continue;
        expect_no_change(a, options().with_pages(16), at_once().with_pages(16));
    }
}

// Where references move after the first part, and where rows see values that are no numbers.
TEST_P(Parts, ChangeNoBitOfExtremes) {
    Attention a = attention();
    for (int32_t g = 0; g < a.num_kv_heads; g++) {
        for (int32_t j = a.kv_len / 2; j < a.kv_len; j += 100) {
            for (int32_t d = 0; d < a.head_dim; d++) a.k_row(0, j, g)[d] *= 1 + static_cast<float>(j) / 100;
        }
        a.v_row(1, a.kv_len - 200, g)[0] = std::numeric_limits<float>::infinity();
    }
    expect_no_change(a);
}

// Those that pack keys, and do not sweep over masks.
std::vector<TableKernel> kernels_with_parts() {
    return only(on_cpu(supported_kernels()), [](const TableKernel &kernel) {
        const bool sweeps = kernel.has(HEED_FEATURE_BIAS) || kernel.has(HEED_FEATURE_MASK);
        return kernel.info.phase == HEED_PREFILL && kernel.info.isa == HEED_AMX && !sweeps;
    });
}

INSTANTIATE_TEST_SUITE_P(Kernels, Parts, testing::ValuesIn(kernels_with_parts()), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Parts);

}  // namespace
}  // namespace heed_test
