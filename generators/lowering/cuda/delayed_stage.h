#pragma once
// Computes a stage of a step one step later, while tensor cores multiply for the next step.
//
//   for step: { products, all that is made of them, the stage }
//
// becomes
//
//   products of step 0, all that is made of them
//   for step, but the last: { the stage of this step and products of the next one, all that is made of these }
//   the stage of the last step
//
// so that tensor cores work at the stage while all else is made of products (FlashAttention-3: Shah et al., arXiv
// 2407.08608, section 3.2). What the stage reads in registers is that of its step, since the next one's comes after.

#include <set>
#include <string>

#include "Halide.h"

namespace heed {

// stage, product: the names of the Funcs of the stage and of the product that is begun with it. before_arrival: waits
// until the stage of the step before has ended. at_arrival: what a thread does for its own copies before the barrier of
// a step.
struct StageDelay {
    std::string stage, product;
    Halide::Expr before_arrival, at_arrival;
};

class DelayedStage {
public:
    DelayedStage(const Halide::Internal::For *loop, const Halide::Internal::Stmt &body, const StageDelay &delay);

    Halide::Internal::Stmt first() const;                          // of step 0
    Halide::Internal::Stmt turn() const;                           // the stage of the loop's step, all else of the next
    Halide::Internal::Stmt last(const Halide::Expr &steps) const;  // of so many steps
    bool reads(const std::string &array) const { return read.count(array) != 0; }

private:
    const Halide::Internal::For *const loop;
    const std::string product;
    Halide::Internal::Stmt stage, others;
    std::set<std::string> read;  // by the stage
};

}  // namespace heed
