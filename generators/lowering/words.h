#pragma once
// Vectors of neighbours in memory that are read as words of 32 bits.

#include <vector>

#include "Halide.h"

namespace heed {

// Two elements of 16 bits or four of 8, the first one in the lowest bits, which are neighbours in memory. Of elements
// that are masked or shifted together LLVM would load each by itself.
Halide::Expr word_of_neighbours(const std::vector<Halide::Expr> &neighbours);

// Lowering pass, after vectorisation: vectors of word_of_neighbours become loads of words.
class LowerWords : public Halide::Internal::IRMutator {
protected:
    using IRMutator::visit;
    Halide::Expr visit(const Halide::Internal::Call *op) override;
};

}  // namespace heed
