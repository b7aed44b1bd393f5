// heed_attention_backward against the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

#include "heed/ops.h"
#include "runtime/cuda/op_kernels.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/reference/element.h"
#include "runtime/reference/tolerance.h"
#include "tests/ops/backward_call.h"
#include "tests/ops/backward_cases.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/device.h"
#include "tests/support/table_kernels.h"

namespace heed_test {
namespace {

using heed::Capability;
using heed::Isa;

// Each instance runs the kernels of one ISA.
const bool emulated = test_device() == HEED_CUDA;  // each instruction of a warp takes its time
const Shape over_blocks = emulated ? Shape{2, 4, 2, 35, 67, 40, 57} : Shape{2, 4, 2, 101, 203, 40, 57};

class Backward : public testing::TestWithParam<heed::KernelTarget> {
protected:
    void SetUp() override {
        if (!machine_has(GetParam().value)) GTEST_SKIP() << "this machine lacks it";
        heed::limit_op_target(GetParam());
    }
    void TearDown() override {
        heed::limit_op_target(test_device() == HEED_CPU ? heed::highest_cpu_target : heed::highest_cuda_target);
        if (worst_ > 0) std::printf("largest error / bound: %.3f\n", worst_);
    }

    static bool has_bf16_kernels() { return GetParam() == Isa::avx512bf16 || GetParam() == Isa::amx; }

    // In the type whose kernels the ISA has.
    static heed_dtype dtype() {
        return has_bf16_kernels() ? HEED_BF16 : GetParam() == Capability::sm80 ? HEED_F16 : HEED_F32;
    }
    static Attention attention(const Shape &shape, const std::string &name) {
        return backward_attention(shape, name, dtype());
    }

    void expect_near(const std::vector<float> &got, const std::vector<double> &value, const std::vector<double> &bound,
                     const char *what) {
        ASSERT_EQ(got.size(), value.size());
        for (size_t n = 0; n < got.size(); n++) {
            const double error = std::fabs(static_cast<double>(got[n]) - value[n]);
            ASSERT_LE(error, bound[n]) << what << "[" << n << "] is " << got[n] << ", the reference " << value[n];
            if (error > 0) worst_ = std::max(worst_, error / bound[n]);
        }
    }

    BackwardResult expect_correct(const Attention &a, CallOptions options) {
        BackwardResult first;
        for (const Flush side : {Flush::rear, Flush::front}) {
            BackwardCall call(a, options.with_flush(side), random_dout(a));
            EXPECT_EQ(call.prepare(), HEED_OK) << heed_last_error();
            EXPECT_EQ(call.backward(), HEED_OK) << heed_last_error();
            EXPECT_TRUE(call.slack_intact());
            if (testing::Test::HasFailure()) return first;
            const BackwardResult result = call.result();
            if (side == Flush::front) {
                expect_same(result, first);
                continue;
            }
            first = result;
            const bool of_bf16 = has_bf16_kernels() && a.dtype == HEED_BF16;
            const bool narrow = of_bf16 || GetParam() == Capability::sm80;  // weights and gradients of logits
            const GradientReference ref = compute_gradients(a, call.inputs(), narrow ? a.dtype : HEED_F32);
            expect_near(result.dq, ref.value.dq, ref.bound.dq, "dq");
            expect_near(result.dk, ref.value.dk, ref.bound.dk, "dk");
            expect_near(result.dv, ref.value.dv, ref.bound.dv, "dv");
            expect_near(result.dbias, ref.value.dbias, ref.bound.dbias, "dbias");
            expect_near(result.dsink, ref.value.dsink, ref.bound.dsink, "dsink");
        }
        return first;
    }

    static BackwardResult run(const Attention &a, const CallOptions &options, const std::vector<float> &dout) {
        BackwardCall call(a, options, dout);
        EXPECT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        EXPECT_EQ(call.backward(), HEED_OK) << heed_last_error();
        return call.result();
    }

    static void expect_same(const BackwardResult &got, const BackwardResult &expected) {
        for (auto part : {&BackwardResult::dq, &BackwardResult::dk, &BackwardResult::dv, &BackwardResult::dbias,
                          &BackwardResult::dsink}) {
            ASSERT_TRUE(same_bits(got.*part, expected.*part));
        }
    }

private:
    double worst_ = 0;
};

TEST_P(Backward, EveryFeatureOnSmallShapes) {
    for (const BackwardCase &c : backward_cases()) {
        if (test_device() == HEED_CUDA && !c.on_cuda) continue;
        SCOPED_TRACE(c.name);
        expect_correct(attention(small_backward_shape, c.name), CallOptions());
    }
}

// Several blocks of queries and of keys, none of them whole.
TEST_P(Backward, EveryFeatureOverBlocks) {
    for (const BackwardCase &c : backward_cases()) {
        if (test_device() == HEED_CUDA && !c.on_cuda) continue;
        SCOPED_TRACE(c.name);
        expect_correct(attention(over_blocks, c.name), CallOptions());
    }
}

TEST_P(Backward, WholeBlocks) {
    for (const int32_t head_dim : {32, 64, 128}) {
        expect_correct(attention({1, 2, 1, 96, emulated ? 64 : 192, head_dim, head_dim}, "plain"), CallOptions());
    }
}

// Rows of keys that are multiples of 4 share what dropout counts.
TEST_P(Backward, DropoutWhereRowsAreWholeCounters) {
    for (const int32_t head_dim : {24, 128, 256}) {
        expect_correct(attention({2, 4, 2, 21, 72, head_dim, head_dim}, "all"), CallOptions());
    }
}

TEST_P(Backward, WideHeadsOverBlocks) {
    for (const int32_t head_dim : {128, 256}) {
        expect_correct(attention({1, 4, 2, 70, 70, head_dim, head_dim}, "all"), CallOptions());
    }
}

TEST_P(Backward, HeadDims) {
    const int32_t most = test_device() == HEED_CPU ? 640 : 256;
    for (const int32_t head_dim : {1, 31, 33, 96, 256, most}) {
        expect_correct(attention({1, 2, 1, 5, 7, head_dim, most + 1 - head_dim}, "causal"), CallOptions());
    }
}

TEST_P(Backward, SixteenBits) {
    for (const heed_dtype dtype : {HEED_F16, HEED_BF16}) {
        for (const char *const name : {"plain", "causal", "bias_of_heads", "all"}) {
            SCOPED_TRACE(name);
            Attention a = backward_attention({2, 4, 2, 53, emulated ? 40 : 111, 40, 40}, name, dtype);
            expect_correct(a, CallOptions());
            a.bias_dtype = dtype;
            hold_in_types(&a);
            expect_correct(a, CallOptions());
        }
    }
}

TEST_P(Backward, RaggedBatches) {
    for (const char *const name : {"plain", "bottom_right", "all"}) {
        SCOPED_TRACE(name);
        Attention a = attention({3, 4, 2, 60, 130, 24, 24}, name);
        a.q_lens = {60, 0, 7};
        a.kv_lens = {130, 20, 0};
        expect_correct(a, CallOptions().with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN));
        expect_correct(a, CallOptions().with_storage(HEED_Q_VARLEN, HEED_KV_CONTIGUOUS));
    }
}

TEST_P(Backward, MetadataOnDevice) {
    if (test_device() == HEED_CPU) GTEST_SKIP() << "metadata of CPU plans is on the host";
    Attention a = attention({3, 4, 2, 60, 130, 24, 24}, "bottom_right");
    a.q_lens = {60, 0, 7};
    a.kv_lens = {130, 20, 0};
    const CallOptions options = CallOptions().with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN);
    BackwardCall call(a, options, random_dout(a));
    call.forward.problem.metadata_on_device = true;
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    ASSERT_EQ(call.backward(), HEED_OK) << heed_last_error();
    EXPECT_EQ(call.forward.device_status, 0);
    expect_same(call.result(), run(a, options, random_dout(a)));
}

TEST_P(Backward, Layouts) {
    for (const Layout layout : {Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::padded}) {
        expect_correct(attention({2, 4, 2, 19, 33, 24, 40}, "causal"), CallOptions().with_layout(layout));
    }
}

TEST_P(Backward, ThreadsAndRepeatsChangeNoBit) {
    for (const char *const name : {"causal", "bias_of_heads", "all"}) {
        SCOPED_TRACE(name);
        const auto check = [&](const Attention &a, const std::vector<int32_t> &counts) {
            const BackwardResult one = expect_correct(a, CallOptions());
            for (const int32_t threads : counts) {
                BackwardCall call(a, CallOptions().with_threads(threads), random_dout(a));
                ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
                for (int32_t repeat = 0; repeat < 3; repeat++) {
                    ASSERT_EQ(call.backward(), HEED_OK) << heed_last_error();
                    expect_same(call.result(), one);
                }
            }
        };
        if (emulated) {
            check(attention({2, 2, 1, 101, 100, 40, 40}, name), {1});
        } else {
            check(attention({2, 2, 1, 101, 500, 40, 40}, name), {2, 3, 8});
            check(attention({4, 4, 2, 101, 130, 40, 40}, name), {2, 8, 16});  // packed rows: of threads, of all heads
        }
    }
}

// The bits of a sequence's gradients are those of the sequence alone.
TEST_P(Backward, BatchesChangeNoBitWhereAsked) {
    const Attention batch = attention({2, 2, 1, 101, emulated ? 100 : 500, 40, 40}, "causal");
    Attention alone = batch;
    alone.batch = 1;
    for (std::vector<float> *const tensor : {&alone.q, &alone.k, &alone.v}) tensor->resize(tensor->size() / 2);
    CallOptions options;
    options.batch_invariant = true;
    std::vector<float> dout = random_dout(batch);
    BackwardResult expected = run(batch, options, dout);
    dout.resize(dout.size() / 2);
    for (const auto part : {&BackwardResult::dq, &BackwardResult::dk, &BackwardResult::dv}) {
        (expected.*part).resize((expected.*part).size() / 2);
    }
    expect_same(run(alone, options, dout), expected);
}

// Windows that leave whole blocks of keys and of queries out.
TEST_P(Backward, BlocksThatNoWindowReaches) {
    Attention a = attention({1, 2, 1, 230, 230, 24, 24}, "causal");
    a.window_left = 20;
    expect_correct(a, CallOptions().with_threads(0));
}

TEST_P(Backward, DropoutOfEverythingGivesZeros) {
    Attention a = attention({1, 2, 1, 9, 20, 24, 24}, "dropout");
    a.dropout_p = 1;
    const BackwardResult result = run(a, CallOptions(), random_dout(a));
    for (const auto part : {&BackwardResult::dq, &BackwardResult::dk, &BackwardResult::dv}) {
        for (const float x : result.*part) ASSERT_EQ(x, 0);
    }
}

// What a row holds, keys that it does not see do not meet.
TEST_P(Backward, NaNOfARowStaysWithItsKeys) {
    const int32_t row = 30;
    for (const float softcap : {0.f, 2.f}) {
        Attention capped = attention({1, 2, 1, 60, 60, 24, 24}, "causal");
        capped.softcap = softcap;
        const BackwardResult clean = run(capped, CallOptions(), random_dout(capped));
        capped.q_row(0, row, 0)[5] = std::numeric_limits<float>::quiet_NaN();
        const BackwardResult with_nan = run(capped, CallOptions(), random_dout(capped));
        for (auto n = static_cast<size_t>(capped.k_index(0, row + 1, 0)); n < clean.dk.size(); n++) {
            ASSERT_EQ(with_nan.dk[n], clean.dk[n]) << n;
            ASSERT_EQ(with_nan.dv[n], clean.dv[n]) << n;
        }
        ASSERT_TRUE(std::isnan(with_nan.dk[0]));
    }
    // In dout: delta and so all of dk, and where it meets dv.
    const Attention a = attention({1, 2, 1, 60, 60, 24, 24}, "causal");
    std::vector<float> dout = random_dout(a);
    const BackwardResult expected = run(a, CallOptions(), dout);
    dout[static_cast<size_t>(a.out_index(0, row, 0) + 5)] = std::numeric_limits<float>::infinity();
    const BackwardResult with_infinity = run(a, CallOptions(), dout);
    for (auto n = static_cast<size_t>(a.k_index(0, row + 1, 0)); n < expected.dk.size(); n++) {
        ASSERT_EQ(with_infinity.dk[n], expected.dk[n]) << n;
        ASSERT_EQ(with_infinity.dv[n], expected.dv[n]) << n;
    }
    for (int32_t key = 0; key <= row; key++) {
        ASSERT_FALSE(std::isfinite(with_infinity.dk[static_cast<size_t>(a.k_index(0, key, 0))])) << key;
        ASSERT_FALSE(std::isfinite(with_infinity.dv[static_cast<size_t>(a.v_index(0, key, 0) + 5)])) << key;
    }
}

// Rows that see no key, with anything in dout, q and, where a sink gives them an lse, the lot.
TEST_P(Backward, RowsWithoutKeysGiveZeros) {
    for (const bool with_sink : {false, true}) {
        Attention a = attention({1, 2, 1, 60, 20, 24, 24}, "bottom_right");
        if (with_sink) a.sink = {0.5f, -0.5f};
        std::vector<float> dout = random_dout(a);
        const BackwardResult clean = run(a, CallOptions(), dout);
        for (int32_t h = 0; h < 2; h++) {
            a.q_row(0, 7, h)[3] = std::numeric_limits<float>::quiet_NaN();
            dout[static_cast<size_t>(a.out_index(0, 7, h))] = std::numeric_limits<float>::quiet_NaN();
        }
        const BackwardResult poisoned = run(a, CallOptions(), dout);
        const int64_t before_first_key = a.q_index(0, 40, 0);
        for (int64_t n = 0; n < before_first_key; n++) ASSERT_EQ(poisoned.dq[static_cast<size_t>(n)], 0) << n;
        expect_same(poisoned, clean);
    }
}

// What a key holds that a mask or a bias of -inf hides, a key of a later row or of none changes no bit of the rows that
// do not see it.
TEST_P(Backward, HiddenNaNStaysOut) {
    constexpr int32_t q_len = 57;  // no whole tile of rows
    const struct {
        const char *name;
        float softcap;
        int32_t key, head_dim;
    } cases[] = {{"causal", 0, 50, 24}, {"causal", 2, 50, 24}, {"causal", 0, 62, 24}, {"causal", 2, 62, 24},
                 {"mask", 0, 50, 24},   {"mask", 2, 50, 24},   {"mask", 0, 50, 128},  {"mask", 0, 50, 256},
                 {"bias", 0, 50, 24},   {"bias", 2, 50, 24},   {"bias", 0, 50, 128},  {"bias_of_keys", 0, 50, 24}};
    for (const auto &c : cases) {
        SCOPED_TRACE(c.name);
        Attention a = attention({1, 2, 1, q_len, 120, c.head_dim, c.head_dim}, c.name);
        a.softcap = c.softcap;
        if (a.mask.used) {
            a.mask_true_hides = c.softcap > 0;
            for (int32_t i = 0; i < a.q_len; i++) a.mask.at(0, 0, i, c.key) = a.mask_true_hides;
        }
        if (a.bias.used) {
            for (int32_t h = 0; h < a.num_heads; h++) {
                for (int32_t i = 0; i < a.q_len; i++)
                    a.bias.at(0, h, i, c.key) = -std::numeric_limits<float>::infinity();
            }
        }
        const BackwardResult expected = run(a, CallOptions(), random_dout(a));
        const bool hides = a.mask.used || a.bias.used;
        const int32_t rows = hides ? a.q_len : std::min(c.key, a.q_len);  // that do not see the key
        constexpr float infinity = std::numeric_limits<float>::infinity();
        for (const float value : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
            a.k_row(0, c.key, 0)[5] = value;
            a.v_row(0, c.key, 0)[2] = infinity;
            const BackwardResult got = run(a, CallOptions(), random_dout(a));
            for (int64_t n = 0; n < a.q_index(0, rows, 0); n++) {
                ASSERT_EQ(got.dq[static_cast<size_t>(n)], expected.dq[static_cast<size_t>(n)]) << value << " " << n;
            }
            if (rows < a.q_len) continue;
            for (int32_t d = 0; d < c.head_dim; d++) {
                ASSERT_EQ(got.dk[static_cast<size_t>(a.k_index(0, c.key, 0) + d)], 0) << value;
                ASSERT_EQ(got.dv[static_cast<size_t>(a.v_index(0, c.key, 0) + d)], 0) << value;
            }
        }
    }
}

TEST_P(Backward, NoKeysGiveZeros) {
    const Attention a = attention({2, 2, 1, 5, 0, 24, 24}, "plain");
    for (const float x : run(a, CallOptions(), random_dout(a)).dq) ASSERT_EQ(x, 0);
}

TEST_P(Backward, GradientsThatAreNotWanted) {
    const Attention a = attention({1, 2, 1, 21, 33, 24, 24}, "all");
    BackwardCall some(a, CallOptions(), random_dout(a));
    ASSERT_EQ(some.prepare(), HEED_OK);
    some.gradients.dq.data = some.gradients.dv.data = some.gradients.dbias.data = some.gradients.dsink.data = nullptr;
    ASSERT_EQ(some.backward(), HEED_OK) << heed_last_error();
    ASSERT_EQ(some.result().dk, run(a, CallOptions(), random_dout(a)).dk);
}

// Each ISA has a kernel that runs: not another's.
TEST_P(Backward, KernelsOfTheIsa) {
    const heed::OpKernel *kernel = nullptr;
    if (GetParam() == Capability::sm80) {
        kernel = heed::find_backward_cores(heed::Op::attention_backward_keys, dtype(), 100, 90);
        ASSERT_NE(kernel, nullptr);
        EXPECT_EQ(kernel->columns, 128);
    } else {
        const auto find = test_device() == HEED_CPU ? heed::find_op_kernel : heed::find_cuda_op_kernel;
        ASSERT_EQ(find(heed::Op::attention_backward, dtype(), dtype(), &kernel), HEED_OK) << heed_last_error();
    }
    EXPECT_EQ(kernel->target, GetParam());
}

std::vector<heed::KernelTarget> targets() {
    if (test_device() == HEED_CUDA) return {Capability::sm75, Capability::sm80};
    emulate_amx();
    return {Isa::x86_64, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx};
}

INSTANTIATE_TEST_SUITE_P(Ops, Backward, testing::ValuesIn(targets()),
                         [](const auto &target) { return std::string(isa_name(target.param.value)); });

}  // namespace
}  // namespace heed_test
