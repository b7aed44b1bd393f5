// heed_attention_backward: the oracle against central differences, results against the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "backward_call.h"
#include "heed/ops.h"
#include "ops/op_rows.h"
#include "reference.h"
#include "rows.h"
#include "tolerance.h"

namespace heed_test {
namespace {

using heed::Isa;

struct Case {
    const char *name;
    void (*apply)(Attention *a);
};

void causal(Attention *a) { a->causal = true; }
void bottom_right(Attention *a) {
    a->causal = true;
    a->position = HEED_BOTTOM_RIGHT;
}
void explicit_positions(Attention *a) {
    a->causal = true;
    a->position = HEED_EXPLICIT;
    a->q_offsets.assign(static_cast<size_t>(a->batch), 2);
    a->q_offsets[0] = -1;
}
void window(Attention *a) {
    a->window_left = 2;
    a->window_right = 1;
}
void lengths(Attention *a) {
    a->kv_lens.assign(static_cast<size_t>(a->batch), a->kv_len - 1);
    a->kv_lens[0] = a->kv_len / 2;
}
void mask(Attention *a) {
    Rng rng(5);
    add_mask(a, {0, 1, 0, 0}, 0.7, &rng);
}
void bias(Attention *a) {
    Rng rng(6);
    add_bias(a, {0, 0, 0, 0}, &rng);
}
void bias_of_heads(Attention *a) {
    Rng rng(7);
    add_bias(a, {1, 0, 0, 0}, &rng);
}
void bias_of_keys(Attention *a) {
    Rng rng(8);
    add_bias(a, {0, 1, 1, 0}, &rng);
}
void bias_of_rows(Attention *a) {
    Rng rng(9);
    add_bias(a, {1, 1, 0, 1}, &rng);
}
void softcap(Attention *a) { a->softcap = 1.5f; }
void sinks(Attention *a) {
    for (int32_t h = 0; h < a->num_heads; h++) a->sink.push_back(0.5f - static_cast<float>(h));
}
void alibi(Attention *a) {
    for (int32_t h = 0; h < a->num_heads; h++) a->alibi_slopes.push_back(0.25f / static_cast<float>(h + 1));
}
void symmetric_alibi(Attention *a) {
    alibi(a);
    a->alibi_symmetric = true;
}
void dropout(Attention *a) {
    a->dropout_p = 0.3f;
    a->dropout_seed = 0x123456789abcdef0;
    a->dropout_offset = 3;
}
void all_at_once(Attention *a) {
    bottom_right(a);
    mask(a);
    bias_of_heads(a);
    softcap(a);
    sinks(a);
    symmetric_alibi(a);
    dropout(a);
    lengths(a);
    a->scale = -0.3f;
}

const Case cases[] = {{"plain", [](Attention *) {}},
                      {"causal", causal},
                      {"bottom_right", bottom_right},
                      {"explicit", explicit_positions},
                      {"window", window},
                      {"lengths", lengths},
                      {"mask", mask},
                      {"bias", bias},
                      {"bias_of_heads", bias_of_heads},
                      {"bias_of_keys", bias_of_keys},
                      {"bias_of_rows", bias_of_rows},
                      {"softcap", softcap},
                      {"sinks", sinks},
                      {"alibi", alibi},
                      {"symmetric_alibi", symmetric_alibi},
                      {"dropout", dropout},
                      {"all", all_at_once}};

Attention attention(const Shape &shape, const Case &c, heed_dtype dtype = HEED_F32) {
    Attention a = make_attention(shape, Data::normal, 11, dtype);
    a.bias_dtype = HEED_F32;
    c.apply(&a);
    hold_in_types(&a);
    return a;
}

const Shape small = {2, 4, 2, 3, 5, 3, 2};

double loss(const Attention &a, const std::vector<float> &dout) {
    const Reference ref = compute_reference_as_held(a, false);
    double sum = 0;
    for (size_t n = 0; n < dout.size(); n++) sum += static_cast<double>(dout[n]) * ref.out[n];
    return sum;
}

// Richardson's: the difference of two step sizes is three times what the smaller step's result is off, to first order.
void expect_slopes(Attention *a, std::vector<float> *values, const std::vector<double> &gradient,
                   const std::vector<float> &dout, const std::string &what) {
    for (size_t n = 0; n < values->size(); n++) {
        const float x = (*values)[n];
        const auto slope = [&](float step) {
            (*values)[n] = x + step;
            const double above = static_cast<double>((*values)[n]), loss_above = loss(*a, dout);
            (*values)[n] = x - step;
            const double below = static_cast<double>((*values)[n]), loss_below = loss(*a, dout);
            (*values)[n] = x;
            return (loss_above - loss_below) / (above - below);
        };
        const double coarse = slope(0x1p-7f), fine = slope(0x1p-8f);
        const double best = fine + (fine - coarse) / 3, bound = std::fabs(fine - coarse) + 0x1p-38;
        ASSERT_NEAR(gradient[n], best, bound) << what << "[" << n << "]";
    }
}

TEST(BackwardReference, IsTheSlopeOfTheForwardReference) {
    for (const Case &c : cases) {
        SCOPED_TRACE(c.name);
        Attention a = attention(small, c);
        const std::vector<float> dout = random_dout(a);
        const Reference ref = compute_reference_as_held(a, false);
        const Gradients g =
            compute_gradients(a, {std::vector<double>(dout.begin(), dout.end()), ref.out, ref.lse}).value;
        expect_slopes(&a, &a.q, g.dq, dout, "dq");
        expect_slopes(&a, &a.k, g.dk, dout, "dk");
        expect_slopes(&a, &a.v, g.dv, dout, "dv");
        if (a.bias.used) expect_slopes(&a, &a.bias.data, g.dbias, dout, "dbias");
        if (!a.sink.empty()) expect_slopes(&a, &a.sink, g.dsink, dout, "dsink");
    }
}

// Each instance runs the rows of one ISA.
class Backward : public testing::TestWithParam<Isa> {
protected:
    void SetUp() override {
        if (!machine_has(static_cast<heed_isa>(GetParam()))) GTEST_SKIP() << "this CPU lacks it";
        heed::limit_op_isa(GetParam());
    }
    void TearDown() override {
        heed::limit_op_isa(heed::highest_cpu_isa);
        if (worst_ > 0) std::printf("largest error / bound: %.3f\n", worst_);
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
            const GradientReference ref = compute_gradients(a, call.inputs());
            expect_near(result.dq, ref.value.dq, ref.bound.dq, "dq");
            expect_near(result.dk, ref.value.dk, ref.bound.dk, "dk");
            expect_near(result.dv, ref.value.dv, ref.bound.dv, "dv");
            expect_near(result.dbias, ref.value.dbias, ref.bound.dbias, "dbias");
            expect_near(result.dsink, ref.value.dsink, ref.bound.dsink, "dsink");
        }
        return first;
    }

    static void expect_same(const BackwardResult &got, const BackwardResult &expected) {
        for (auto part : {&BackwardResult::dq, &BackwardResult::dk, &BackwardResult::dv, &BackwardResult::dbias,
                          &BackwardResult::dsink}) {
            ASSERT_EQ((got.*part).size(), (expected.*part).size());
            ASSERT_EQ(std::memcmp((got.*part).data(), (expected.*part).data(), (got.*part).size() * sizeof(float)), 0);
        }
    }

private:
    double worst_ = 0;
};

TEST_P(Backward, EveryFeatureOnSmallShapes) {
    for (const Case &c : cases) {
        SCOPED_TRACE(c.name);
        expect_correct(attention(small, c), CallOptions());
    }
}

// Several blocks of queries and of keys, none of them whole.
TEST_P(Backward, EveryFeatureOverBlocks) {
    for (const Case &c : cases) {
        SCOPED_TRACE(c.name);
        expect_correct(attention({2, 4, 2, 101, 203, 40, 57}, c), CallOptions());
    }
}

TEST_P(Backward, WholeBlocks) {
    for (const int32_t head_dim : {32, 64, 128}) {
        expect_correct(attention({1, 2, 1, 96, 192, head_dim, head_dim}, cases[0]), CallOptions());
    }
}

TEST_P(Backward, HeadDims) {
    for (const int32_t head_dim : {1, 31, 33, 96, 256, 640}) {
        expect_correct(attention({1, 2, 1, 5, 7, head_dim, 641 - head_dim}, cases[1]), CallOptions());
    }
}

TEST_P(Backward, SixteenBits) {
    for (const heed_dtype dtype : {HEED_F16, HEED_BF16}) {
        for (const Case &c : {cases[0], cases[1], cases[8], cases[16]}) {
            SCOPED_TRACE(c.name);
            Attention a = attention({2, 4, 2, 53, 111, 40, 40}, c, dtype);
            expect_correct(a, CallOptions());
            a.bias_dtype = dtype;
            hold_in_types(&a);
            expect_correct(a, CallOptions());
        }
    }
}

TEST_P(Backward, RaggedBatches) {
    for (const Case &c : {cases[0], cases[2], cases[16]}) {
        SCOPED_TRACE(c.name);
        Attention a = attention({3, 4, 2, 60, 130, 24, 24}, c);
        a.q_lens = {60, 0, 7};
        a.kv_lens = {130, 20, 0};
        expect_correct(a, CallOptions().with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN));
        expect_correct(a, CallOptions().with_storage(HEED_Q_VARLEN, HEED_KV_CONTIGUOUS));
    }
}

TEST_P(Backward, Layouts) {
    for (const Layout layout : {Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::padded}) {
        expect_correct(attention({2, 4, 2, 19, 33, 24, 40}, cases[1]), CallOptions().with_layout(layout));
    }
}

TEST_P(Backward, ThreadsAndRepeatsChangeNoBit) {
    for (const Case &c : {cases[1], cases[8], cases[16]}) {
        SCOPED_TRACE(c.name);
        const Attention a = attention({2, 2, 1, 101, 500, 40, 40}, c);
        const BackwardResult one = expect_correct(a, CallOptions());
        for (const int32_t threads : {2, 3, 8}) {
            BackwardCall call(a, CallOptions().with_threads(threads), random_dout(a));
            ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
            for (int32_t repeat = 0; repeat < 3; repeat++) {
                ASSERT_EQ(call.backward(), HEED_OK) << heed_last_error();
                expect_same(call.result(), one);
            }
        }
    }
}

// Rows that see no key, with anything in dout, q and, where a sink gives them an lse, the lot.
TEST_P(Backward, RowsWithoutKeysGiveZeros) {
    for (const bool with_sink : {false, true}) {
        Attention a = attention({1, 2, 1, 60, 20, 24, 24}, cases[2]);  // rows 0..39 stand before the first key
        if (with_sink) sinks(&a);
        std::vector<float> dout = random_dout(a);
        BackwardCall clean(a, CallOptions(), dout);
        ASSERT_EQ(clean.prepare(), HEED_OK);
        ASSERT_EQ(clean.backward(), HEED_OK) << heed_last_error();
        for (int32_t h = 0; h < 2; h++) {
            a.q_row(0, 7, h)[3] = std::numeric_limits<float>::quiet_NaN();
            dout[static_cast<size_t>(a.out_index(0, 7, h))] = std::numeric_limits<float>::quiet_NaN();
        }
        BackwardCall poisoned(a, CallOptions(), dout);
        ASSERT_EQ(poisoned.prepare(), HEED_OK);
        ASSERT_EQ(poisoned.backward(), HEED_OK) << heed_last_error();
        const BackwardResult result = poisoned.result();
        for (int64_t n = 0; n < a.q_index(0, 40, 0); n++) ASSERT_EQ(result.dq[static_cast<size_t>(n)], 0) << n;
        expect_same(result, clean.result());
    }
}

// What a masked key or a key of a later row holds changes no bit of the rows that do not see it.
TEST_P(Backward, HiddenNaNStaysOut) {
    for (const Case &c : {cases[1], cases[6]}) {
        SCOPED_TRACE(c.name);
        Attention a = attention({1, 2, 1, 60, 120, 24, 24}, c);
        const int32_t key = 50;
        if (a.mask.used) {
            for (int32_t i = 0; i < a.q_len; i++) a.mask.at(0, 0, i, key) = 0;
        }
        BackwardCall clean(a, CallOptions(), random_dout(a));
        ASSERT_EQ(clean.prepare(), HEED_OK);
        ASSERT_EQ(clean.backward(), HEED_OK) << heed_last_error();
        a.k_row(0, key, 0)[5] = std::numeric_limits<float>::quiet_NaN();
        a.v_row(0, key, 0)[2] = std::numeric_limits<float>::infinity();
        BackwardCall poisoned(a, CallOptions(), random_dout(a));
        ASSERT_EQ(poisoned.prepare(), HEED_OK);
        ASSERT_EQ(poisoned.backward(), HEED_OK) << heed_last_error();
        const BackwardResult expected = clean.result(), got = poisoned.result();
        const int32_t rows = a.mask.used ? a.q_len : key;  // that do not see the key
        for (int64_t n = 0; n < a.q_index(0, rows, 0); n++) {
            ASSERT_EQ(got.dq[static_cast<size_t>(n)], expected.dq[static_cast<size_t>(n)]) << n;
        }
        if (!a.mask.used) continue;
        for (int32_t d = 0; d < 24; d++) {
            ASSERT_EQ(got.dk[static_cast<size_t>(a.k_index(0, key, 0) + d)], 0);
            ASSERT_EQ(got.dv[static_cast<size_t>(a.v_index(0, key, 0) + d)], 0);
        }
    }
}

TEST_P(Backward, NoKeysGiveZeros) {
    Attention a = attention({2, 2, 1, 5, 0, 24, 24}, cases[0]);
    BackwardCall call(a, CallOptions(), random_dout(a));
    ASSERT_EQ(call.prepare(), HEED_OK);
    ASSERT_EQ(call.backward(), HEED_OK) << heed_last_error();
    for (const float x : call.result().dq) ASSERT_EQ(x, 0);
}

TEST_P(Backward, GradientsThatAreNotWanted) {
    const Attention a = attention({1, 2, 1, 21, 33, 24, 24}, cases[16]);
    BackwardCall all(a, CallOptions(), random_dout(a)), some(a, CallOptions(), random_dout(a));
    ASSERT_EQ(all.prepare(), HEED_OK);
    ASSERT_EQ(some.prepare(), HEED_OK);
    some.gradients.dq.data = some.gradients.dv.data = some.gradients.dbias.data = some.gradients.dsink.data = nullptr;
    ASSERT_EQ(all.backward(), HEED_OK) << heed_last_error();
    ASSERT_EQ(some.backward(), HEED_OK) << heed_last_error();
    ASSERT_EQ(some.result().dk, all.result().dk);
}

INSTANTIATE_TEST_SUITE_P(Isas, Backward, testing::Values(Isa::x86_64, Isa::avx2, Isa::avx512),
                         [](const auto &isa) { return std::string(isa_name(static_cast<heed_isa>(isa.param))); });

}  // namespace
}  // namespace heed_test
