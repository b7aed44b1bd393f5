// The oracle of gradients: fp64 loops over the derivative of the contract's formula, and how far a result may be off.
#pragma once

#include <vector>

#include "runtime/reference/attention.h"
#include "tests/support/reference_names.h"

namespace heed_test {

// Indexed as q, k, v, the bias and the sink of an Attention.
struct Gradients {
    std::vector<double> dq, dk, dv, dbias, dsink;
};

// What a call of backward gets from the forward call, indexed as Attention's and Reference's: dout and out as out.
struct GradientInputs {
    std::vector<double> dout, out, lse;
};

// `bound`: of a result that float arithmetic makes of these inputs, with e = 2^-23, c of out_bound, per logit
//   weight p      off by e * p * (8 + c * S + |lse|)     S: the largest size of a logit of the row
//   dp = dout.v   off by e * max(|dp|, 4 |products|_2), as a logit's dot product; so is delta = dout.out
//   p (dp - delta), times the slope of softcap, right to 16 e
// and each sum by 8 e of the sum of its terms' sizes. Weights below 2^-126 may be 0. Then the rounding to the type.
// `factors`: the type to which matrix tiles round the weight of dv and the factor of dq and dk: bf16 to 8 bits, 2^-8 of
// each term, numbers below 2^-126 to 0; f16 to 11 bits or multiples of 2^-24.
struct GradientReference {
    Gradients value, bound;
};

GradientReference compute_gradients(const Attention &a, const GradientInputs &inputs, heed_dtype factors = HEED_F32);

}  // namespace heed_test
