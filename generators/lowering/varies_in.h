#pragma once
// For lowering passes that take an expression out of a loop.

#include "Halide.h"

namespace heed {

// Whether the value may change while the body runs: it names what the body binds, reads what the body allocates or
// stores to, or calls what is not pure.
bool varies_in(const Halide::Internal::Stmt &body, const Halide::Expr &value);

}  // namespace heed
