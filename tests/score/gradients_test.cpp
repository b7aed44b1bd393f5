// Gradients through users' score functions against the oracle, which sees the same as a mask, a bias or a softcap.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "heed/ops.h"
#include "runtime/reference/element.h"
#include "tests/ops/backward_call.h"
#include "tests/ops/backward_cases.h"
#include "tests/score/score_cases.h"
#include "tests/support/device.h"
#include "tests/support/table_kernels.h"

namespace heed_test {
namespace {

struct Kernels {
    const char *mod;
    heed_dtype dtype;
    heed_isa isa;
    int32_t head_dim = 64;
};

// Those that the machine has: on CUDA f16 of tensor cores and f32 of CUDA cores.
std::vector<Kernels> kernels() {
    if (test_device() == HEED_CUDA) {
        return {{"capped", HEED_F16, HEED_SM80},        {"capped", HEED_F32, HEED_SM75},
                {"distance", HEED_F16, HEED_SM80},      {"distance", HEED_F32, HEED_SM75},
                {"document", HEED_F16, HEED_SM80},      {"document", HEED_F16, HEED_SM80, 128},
                {"document", HEED_F16, HEED_SM80, 160}, {"document", HEED_F32, HEED_SM75}};
    }
    std::vector<Kernels> list;
    for (const Kernels &of :
         {Kernels{"capped", HEED_F32, HEED_AVX2}, Kernels{"distance", HEED_F32, HEED_AVX2},
          Kernels{"document", HEED_F32, HEED_AVX2}, Kernels{"document", HEED_BF16, HEED_AVX512_BF16}}) {
        if (machine_has(of.isa)) list.push_back(of);
    }
    return list;
}

Attention problem(const Kernels &of, int32_t kv_len, uint64_t seed) {
    Attention a = make_attention({2, 4, 2, kv_len / 2, kv_len, of.head_dim, of.head_dim}, Data::normal, seed, of.dtype);
    a.position = HEED_BOTTOM_RIGHT;
    return a;
}

// The call of `own` with the score function: done, or failed.
void run(BackwardCall *call, const ScoreCase &c, const char *mod) {
    call->forward.problem.score_mod = mod;
    c.set_buffers(&call->forward.args);
    ASSERT_EQ(call->prepare(), HEED_OK) << heed_last_error();
    ASSERT_EQ(call->backward(), HEED_OK) << heed_last_error();
    EXPECT_TRUE(call->slack_intact());
}

void expect_near(const char *what, const std::vector<float> &result, const std::vector<double> &value,
                 const std::vector<double> &bound) {
    ASSERT_EQ(result.size(), value.size());
    for (size_t n = 0; n < result.size(); n++) ASSERT_NEAR(result[n], value[n], bound[n]) << what << "[" << n << "]";
}

// The first elements of rows that have one more.
std::vector<double> without_last(const std::vector<double> &rows, int32_t head_dim) {
    std::vector<double> all;
    for (size_t n = 0; n < rows.size(); n++) {
        if (n % static_cast<size_t>(head_dim) != static_cast<size_t>(head_dim - 1)) all.push_back(rows[n]);
    }
    return all;
}

TEST(ScoreModGradients, EqualMasksBiasesAndSoftcaps) {
    Rng rng(9);
    for (const Kernels &of : kernels()) {
        for (const int32_t kv_len : {40, 203}) {
            SCOPED_TRACE(testing::Message() << of.mod << " " << of.head_dim << " of " << kv_len << " keys");
            const Attention own = problem(of, kv_len, rng.bits());
            ScoreCase c;
            c.a = own;
            c.make(of.mod, &rng);
            BackwardCall call(own, CallOptions(), random_dout(own));
            ASSERT_NO_FATAL_FAILURE(run(&call, c, of.mod));
            const BackwardResult got = call.result();
            const GradientReference ref = compute_gradients(c.a, call.inputs(), of.dtype);
            expect_near("dq", got.dq, ref.value.dq, ref.bound.dq);
            expect_near("dk", got.dk, ref.value.dk, ref.bound.dk);
            expect_near("dv", got.dv, ref.value.dv, ref.bound.dv);
        }
    }
}

// A bias of each key, which comes before the score function, and hides some keys. The oracle has it as a product: of an
// element 1 of each query and one of the key, whose gradient is then that of the bias, times the scale.
TEST(ScoreModGradients, GoThroughToTheBias) {
    constexpr float scale = 0.125f;
    Rng rng(11);
    for (const Kernels &of : kernels()) {
        if (std::string(of.mod) != "capped") continue;
        SCOPED_TRACE(dtype_name(of.dtype));
        constexpr int32_t kv_len = 75;
        Attention own = problem(of, kv_len, rng.bits());
        own.bias = {true, {1, 1, 1, kv_len}, {}};
        std::vector<float> elements;
        for (int32_t j = 0; j < kv_len; j++) elements.push_back(0.125f * static_cast<float>(rng.between(-16, 16)));
        const auto is_hidden = [](int32_t j) { return j % 7 == 3; };
        for (int32_t j = 0; j < kv_len; j++) own.bias.data.push_back(is_hidden(j) ? -HUGE_VALF : elements[j]);
        ScoreCase c;
        Shape wide = own;
        wide.head_dim++;
        c.a = make_attention(wide, Data::normal, 1, of.dtype);
        c.a.position = own.position;
        c.a.scale = scale;
        c.a.v = own.v;
        for (int32_t b = 0; b < own.batch; b++) {
            for (int32_t i = 0; i < own.q_len; i++) {
                for (int32_t h = 0; h < own.num_heads; h++) {
                    std::copy_n(own.q_row(b, i, h), own.head_dim, c.a.q_row(b, i, h));
                    c.a.q_row(b, i, h)[own.head_dim] = 1;
                }
            }
            for (int32_t j = 0; j < kv_len; j++) {
                for (int32_t g = 0; g < own.num_kv_heads; g++) {
                    std::copy_n(own.k_row(b, j, g), own.head_dim, c.a.k_row(b, j, g));
                    c.a.k_row(b, j, g)[own.head_dim] = elements[j] / scale;
                }
            }
        }
        c.make(of.mod, &rng);
        c.see([&](int32_t, int32_t, int32_t, int64_t, int32_t j) { return !is_hidden(j); });
        BackwardCall call(own, CallOptions(), random_dout(own));
        ASSERT_NO_FATAL_FAILURE(run(&call, c, of.mod));
        const BackwardResult got = call.result();
        const GradientReference ref = compute_gradients(c.a, call.inputs(), of.dtype);
        expect_near("dq", got.dq, without_last(ref.value.dq, wide.head_dim), without_last(ref.bound.dq, wide.head_dim));
        expect_near("dk", got.dk, without_last(ref.value.dk, wide.head_dim), without_last(ref.bound.dk, wide.head_dim));
        expect_near("dv", got.dv, ref.value.dv, ref.bound.dv);
        ASSERT_EQ(got.dbias.size(), static_cast<size_t>(kv_len));
        for (int32_t j = 0; j < kv_len; j++) {
            double value = 0, bound = 0;
            for (int32_t b = 0; b < own.batch; b++) {
                for (int32_t g = 0; g < own.num_kv_heads; g++) {
                    const auto last = static_cast<size_t>(c.a.k_index(b, j, g) + own.head_dim);
                    value += ref.value.dk[last] / scale;
                    bound += ref.bound.dk[last] / scale;
                }
            }
            EXPECT_NEAR(got.dbias[j], value, bound) << j;
            if (is_hidden(j)) {
                EXPECT_EQ(got.dbias[j], 0) << j;
            }
        }
    }
}

// Keys of documents that no query belongs to.
TEST(ScoreModGradients, HiddenKeysMayBeNoNumbers) {
    constexpr int32_t len = 150, document = 35, hidden = 2 * document;
    for (const Kernels &of : kernels()) {
        if (std::string(of.mod) != "document" || of.head_dim != 64) continue;
        SCOPED_TRACE(dtype_name(of.dtype));
        Attention own = problem(of, len, 5);
        ScoreCase c;
        for (int32_t b = 0; b < own.batch; b++) {
            for (int32_t j = 0; j < len; j++) c.words[0].push_back(j / document);
        }
        c.words[1] = {len};
        BackwardResult clean;
        for (const float poison : {1.0f, std::nanf(""), HUGE_VALF}) {
            for (int32_t j = 0; j < hidden; j++) own.k_row(0, j, 0)[j % 8] = own.v_row(0, j, 0)[j % 16] = poison;
            BackwardCall call(own, CallOptions(), random_dout(own));
            ASSERT_NO_FATAL_FAILURE(run(&call, c, of.mod));
            const BackwardResult got = call.result();
            if (poison == 1.0f) clean = got;
            for (auto part : {&BackwardResult::dq, &BackwardResult::dk, &BackwardResult::dv}) {
                EXPECT_TRUE(same_bits(got.*part, clean.*part)) << poison;
            }
        }
    }
}

// The score function has kernels of attention, but none of gradients.
TEST(ScoreModGradients, WithoutKernelsAreRefused) {
    const bool on_cuda = test_device() == HEED_CUDA;
    const Attention own = problem({"prefix_lm", on_cuda ? HEED_F16 : HEED_F32, HEED_AVX2}, 40, 1);
    ScoreCase c;
    Rng rng(2);
    c.a = own;
    c.make("prefix_lm", &rng);
    BackwardCall call(own, CallOptions(), random_dout(own));
    call.forward.problem.score_mod = "prefix_lm";
    c.set_buffers(&call.forward.args);
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    EXPECT_EQ(heed_attention_backward_workspace_bytes(call.forward.plan()), 0u);
    EXPECT_EQ(call.backward(), HEED_UNSUPPORTED);
    EXPECT_STREQ(heed_last_error(),
                 on_cuda
                     ? "this program's kernel library has no CUDA kernel of attention_backward for f16 with score_mod "
                       "\"prefix_lm\" that serves the chip"
                     : "this program's kernel library has no kernel of attention_backward for f32 with score_mod "
                       "\"prefix_lm\"");
    EXPECT_TRUE(call.outputs_untouched());
}

}  // namespace
}  // namespace heed_test
