// The oracle of gradients against central differences of the forward one.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/reference/reference.h"
#include "tests/ops/backward_cases.h"
#include "tests/support/gradients.h"

namespace heed_test {
namespace {

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
    for (const BackwardCase &c : backward_cases()) {
        SCOPED_TRACE(c.name);
        Attention a = backward_attention(small_backward_shape, c.name);
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

}  // namespace
}  // namespace heed_test
