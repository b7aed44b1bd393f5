// What a user can get wrong in a score function is refused with the field of user_score.h and what it must be.
#include "generators/attention/check_score_mod.h"
#include "generators/attention/derivative.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <stdexcept>

namespace heed {
namespace {

using Halide::Expr;

// The sentence with which a score function is refused; "" when it is not.
std::string refusal(const ScoreMod &mod, bool on_cuda = false) {
    try {
        check_score_mod(mod, on_cuda);
        return "";
    } catch (const std::runtime_error &error) {
        return error.what();
    }
}

using Visible = Expr (*)(const ScorePlace &, const ScoreBuffers &);
using Logit = Expr (*)(const Expr &, const ScorePlace &, const ScoreBuffers &);

std::string visible_refusal(const std::vector<ScoreElement> &buffers, Visible visible) {
    ScoreMod mod;
    mod.buffers = buffers;
    mod.visible = visible;
    return refusal(mod);
}

std::string logit_refusal(Logit logit, bool on_cuda = false) {
    ScoreMod mod;
    mod.buffers = {ScoreElement::f32};
    mod.logit = logit;
    return refusal(mod, on_cuda);
}

TEST(ScoreModChecks, TakeWhatIsRight) {
    ScoreMod mod;
    mod.buffers = {ScoreElement::i32, ScoreElement::f32};
    mod.logit = [](const Expr &logit, const ScorePlace &at, const ScoreBuffers &in) {
        return Halide::tanh(logit) + in.f32(1, at.h) * Halide::cast<float>(at.j - at.p);
    };
    mod.visible = [](const ScorePlace &at, const ScoreBuffers &in) {
        return in.i32(0, at.b * in.size(0) + Halide::cast<uint8_t>(at.i)) == at.j;
    };
    mod.block_visible = [](const ScoreBlock &, const ScoreBuffers &) { return Halide::Internal::const_true(); };
    EXPECT_EQ(refusal(mod, false), "");
    EXPECT_EQ(refusal(mod, true), "");
}

TEST(ScoreModChecks, RefuseBuffers) {
    ScoreMod many;
    many.buffers.resize(5);
    EXPECT_EQ(refusal(many), "ScoreMod::buffers has 5 elements; at most 4 are allowed");
    EXPECT_EQ(visible_refusal({}, [](const ScorePlace &at, const ScoreBuffers &in) { return in.i32(0, at.p) == 0; }),
              "ScoreMod::visible: ScoreBuffers::i32(0, index): there is no buffer 0; ScoreMod::buffers declares none");
    EXPECT_EQ(visible_refusal({ScoreElement::i32},
                              [](const ScorePlace &at, const ScoreBuffers &in) { return in.size(1) > at.p; }),
              "ScoreMod::visible: ScoreBuffers::size(1): there is no buffer 1; ScoreMod::buffers declares 1, buffer 0");
    EXPECT_EQ(visible_refusal({ScoreElement::f32, ScoreElement::f32},
                              [](const ScorePlace &at, const ScoreBuffers &in) { return in.f32(-1, at.p) > 0; }),
              "ScoreMod::visible: ScoreBuffers::f32(-1, index): there is no buffer -1; ScoreMod::buffers declares 2, "
              "buffers 0..1");
    EXPECT_EQ(visible_refusal({ScoreElement::f32},
                              [](const ScorePlace &at, const ScoreBuffers &in) { return in.i32(0, at.p) == 0; }),
              "ScoreMod::visible: ScoreBuffers::i32(0, index): ScoreMod::buffers declares buffer 0 as f32; f32() reads "
              "it");
}

TEST(ScoreModChecks, RefuseIndices) {
    const std::vector<ScoreElement> one = {ScoreElement::i32};
    const std::string call = "ScoreMod::visible: ScoreBuffers::i32(0, index): index is ";
    EXPECT_EQ(visible_refusal(one, [](const ScorePlace &at,
                                      const ScoreBuffers &in) { return in.i32(0, Halide::cast<float>(at.p)) == 0; }),
              call + "float32; it must be int32");
    EXPECT_EQ(visible_refusal(one, [](const ScorePlace &at,
                                      const ScoreBuffers &in) { return in.i32(0, Halide::cast<int64_t>(at.p)) == 0; }),
              call + "int64; it must be int32");
    EXPECT_EQ(visible_refusal(one, [](const ScorePlace &, const ScoreBuffers &in) { return in.i32(0, Expr()) == 0; }),
              call + "an Expr without a value; it must be int32");
}

TEST(ScoreModChecks, RefuseResultsOfAnotherType) {
    const std::string wants_bool = "; it must give bool, as comparisons do";
    EXPECT_EQ(visible_refusal({}, [](const ScorePlace &at, const ScoreBuffers &) { return at.j - at.p; }),
              "ScoreMod::visible gives int32" + wants_bool);
    EXPECT_EQ(visible_refusal({}, [](const ScorePlace &, const ScoreBuffers &) { return Expr(); }),
              "ScoreMod::visible gives an Expr without a value" + wants_bool);
    ScoreMod block;
    block.block_visible = [](const ScoreBlock &at, const ScoreBuffers &) { return Halide::cast<float>(at.first_j); };
    EXPECT_EQ(refusal(block), "ScoreMod::block_visible gives float32" + wants_bool);

    const std::string wants_float = "; it must give float32, as the logit is: 0.5f and not 0.5, cast<float>(..) of "
                                    "integers";
    EXPECT_EQ(logit_refusal([](const Expr &, const ScorePlace &at, const ScoreBuffers &) { return at.j - at.p; }),
              "ScoreMod::logit gives int32" + wants_float);
    EXPECT_EQ(logit_refusal([](const Expr &logit, const ScorePlace &, const ScoreBuffers &) {
                  return Halide::cast<double>(logit);
              }),
              "ScoreMod::logit gives float64" + wants_float);
    EXPECT_EQ(logit_refusal([](const Expr &logit, const ScorePlace &, const ScoreBuffers &) { return logit > 0; }),
              "ScoreMod::logit gives bool" + wants_float);
}

TEST(ScoreModChecks, RefuseWhatKernelsDoNotHave) {
    const std::string none = ", which is none of its arguments; what varies must be read from ScoreBuffers";
    EXPECT_EQ(visible_refusal({}, [](const ScorePlace &at, const ScoreBuffers &) { return at.p < Halide::Var("x"); }),
              "ScoreMod::visible uses x" + none);
    EXPECT_EQ(logit_refusal([](const Expr &logit, const ScorePlace &, const ScoreBuffers &) {
                  return logit * Halide::Param<float>("slope");
              }),
              "ScoreMod::logit uses slope" + none);
    EXPECT_EQ(logit_refusal([](const Expr &logit, const ScorePlace &at, const ScoreBuffers &) {
                  return logit + Halide::ImageParam(Halide::Float(32), 1, "table")(at.h);
              }),
              "ScoreMod::logit uses table" + none);
}

TEST(ScoreModChecks, RefuseOnCudaWhatItLacks) {
    const std::string cannot = ", which kernels of CUDA cannot; arithmetic, exp, log, tanh and ScoreBuffers are there";
    const Logit sine = [](const Expr &logit, const ScorePlace &, const ScoreBuffers &) { return Halide::sin(logit); };
    EXPECT_EQ(logit_refusal(sine), "");
    EXPECT_EQ(logit_refusal(sine, true), "ScoreMod::logit calls sin_f32" + cannot);
    const Logit table = [](const Expr &logit, const ScorePlace &at, const ScoreBuffers &) {
        Halide::Buffer<float> slopes(4, "slopes");
        return logit * slopes(Halide::clamp(at.h, 0, 3));
    };
    EXPECT_EQ(logit_refusal(table), "");
    EXPECT_EQ(logit_refusal(table, true), "ScoreMod::logit calls slopes" + cannot);
    const Logit printed = [](const Expr &logit, const ScorePlace &, const ScoreBuffers &) {
        return Halide::print(logit);
    };
    EXPECT_EQ(logit_refusal(printed, true), "ScoreMod::logit calls halide_print" + cannot);
}

TEST(ScoreModChecks, NameTheFunctionThatThrows) {
    EXPECT_EQ(
        visible_refusal(
            {}, [](const ScorePlace &, const ScoreBuffers &) -> Expr { throw std::runtime_error("not this kernel"); }),
        "ScoreMod::visible: not this kernel");
}

// Expressions of x at each of some points.
std::vector<Halide::Buffer<float>> evaluate(const std::vector<Expr> &of_x, const std::vector<float> &points) {
    Halide::Buffer<float> x(static_cast<int>(points.size()));
    std::copy(points.begin(), points.end(), x.begin());
    Halide::Var n("n");
    std::vector<Halide::Buffer<float>> results;
    Halide::Func f("f");
    std::vector<Expr> values;
    for (const Expr &e : of_x) values.push_back(Halide::Internal::substitute("x", x(n), e));
    f(n) = Halide::Tuple(values);
    const Halide::Realization found = f.realize({x.width()});
    for (size_t i = 0; i < found.size(); i++) results.emplace_back(found[i]);
    return results;
}

TEST(ScoreModDerivative, IsTheSlope) {
    using Function = Expr (*)(const Expr &);
    const Function functions[] = {
        [](const Expr &x) { return 3.f * x - x / 2.f + 1.f; },
        [](const Expr &x) { return x * x / (1.f + x * x); },
        [](const Expr &x) { return 5.f * Halide::tanh(x / 5.f); },
        [](const Expr &x) { return Halide::exp(-x * x) + Halide::log(2.f + x * x); },
        [](const Expr &x) { return Halide::max(x, 0.25f * x) + Halide::min(x, 2.f); },
        [](const Expr &x) { return Halide::select(x < 0.7f, x * x, 2.f * x); },
        [](const Expr &x) { return Halide::sqrt(4.f + x) + Halide::abs(x) + Halide::pow(x + 4.f, 1.5f); },
        [](const Expr &x) { return Halide::sin(x) * Halide::cos(2.f * x) + Halide::atan(x); },
        [](const Expr &x) { return Halide::clamp(x, -1.f, 1.f) + Halide::floor(x); },
    };
    const float step = 0x1p-9f;
    const std::vector<float> points = {-1.6f, -0.3f, 0.4f, 1.3f, 2.6f};
    for (size_t n = 0; n < std::size(functions); n++) {
        const Expr x = Halide::Internal::Variable::make(Halide::Float(32), "x");
        const auto found =
            evaluate({functions[n](x + step), functions[n](x - step), derivative(functions[n](x), "x")}, points);
        for (int i = 0; i < found[0].width(); i++) {
            const double slope = (static_cast<double>(found[0](i)) - static_cast<double>(found[1](i))) / (2 * step);
            EXPECT_NEAR(found[2](i), slope, 2e-3 * (1 + std::fabs(slope))) << n << " at " << points[i];
        }
    }
}

TEST(ScoreModDerivative, IsTheUsersWhereGiven) {
    ScoreMod mod;
    mod.logit = [](const Expr &logit, const ScorePlace &, const ScoreBuffers &) { return Halide::asin(logit); };
    EXPECT_THROW(with_derivative(mod).logit_derivative(Expr(1.f), {}, {}), std::runtime_error);
    mod.logit_derivative = [](const Expr &, const ScorePlace &, const ScoreBuffers &) { return Expr(7.f); };
    const Expr given = with_derivative(mod).logit_derivative(Expr(1.f), {}, {});
    EXPECT_TRUE(Halide::Internal::equal(given, Expr(7.f)));
}

}  // namespace
}  // namespace heed
