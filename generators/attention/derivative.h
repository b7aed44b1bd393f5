#pragma once

#include <string>

#include "heed/user_score.h"

namespace heed {

// The derivative of `value` by the float variable `name`, as an expression of the same type. Of a select it is that of
// the branch that is taken; where a minimum or maximum has two that of the first. Throws std::runtime_error with the
// name of a call that has no derivative here.
Halide::Expr derivative(const Halide::Expr &value, const std::string &name);

// The score function with the derivative of its logit, its own or the one found here.
ScoreMod with_derivative(ScoreMod mod);

}  // namespace heed
