#pragma once
// One logit of attention's gradients as device code: the formulas of generators/attention/backward_logits.h, with loads
// of its own.

#include "generators/cuda/backward_inputs.h"
#include "generators/cuda/row_elements.h"

namespace heed::cuda {

// For a head of a sequence. `zero` is 0, but a compiler must not know it where it has no registers for what it could
// compute before a loop.
struct BackwardHead {
    Halide::Expr sequence, head, slope;
    SequenceFields fields;
    Halide::Expr zero = 0;
};

// What the products of a logit make: the weight after dropout and the gradient of scale * q.k.
struct LogitGradients {
    Halide::Expr weight, score;
};

class BackwardLogit {
public:
    BackwardLogit(ElementType type, const BackwardInputs &in, DeviceCode &code)
        : in(in), code(code), elements(type, code) {}

    // 0 without slopes.
    Halide::Expr load_slope(const Halide::Expr &head);
    // For query i and key j, which need not exist, from q.k and dout.v. Hidden products may be anything.
    LogitGradients gradients(const BackwardHead &at, const Halide::Expr &i, const Halide::Expr &j,
                             const Halide::Expr &dot, const Halide::Expr &weight_dot, const Halide::Expr &lse_log2,
                             const Halide::Expr &delta);

private:
    const BackwardInputs &in;
    DeviceCode &code;
    RowElements elements;

    Halide::Expr element_of(const DeviceTensor &tensor, const BackwardHead &at, const Halide::Expr &i,
                            const Halide::Expr &j, int size);
    Halide::Expr factor_of_dropout(const BackwardHead &at, const Halide::Expr &i, const Halide::Expr &j);
};

}  // namespace heed::cuda
