#pragma once
// Lowering pass: computes the vectors of query rows that exist.
//
// A block of rows is several vectors, unrolled in the stages of a step so that they share the operands of a register
// tile. The last block of a sequence, or its only one, may have rows for fewer. Halide has no loop left there to end
// sooner: so each step becomes one copy for each number of vectors up to `most_kept`, without the stores of the others.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class TrimRows : public Halide::Internal::IRMutator {
public:
    struct Rows {
        std::vector<std::string> loops;   // over vectors, where they are not unrolled: ends of their names
        std::vector<std::string> stages;  // arrays whose innermost dimension they are, of `block` elements
        // Stages that become matrix tiles have loops over single rows: the end of their names, "" where there are none.
        std::string single;
        std::vector<std::string> filled;  // stages whose other rows keep the constants that they start from
        int most_kept = 0;                // vectors of a copy; less than all
        int block = 0, lanes = 0;
        Halide::Expr left;  // from the first one of the block on, at least 1
    };

    // `steps`: names of the loops that are copied contain one of these.
    TrimRows(Rows rows, std::vector<std::string> steps) : rows(std::move(rows)), steps(std::move(steps)) {}

    int found = 0;  // loops over steps

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;

private:
    const Rows rows;
    const std::vector<std::string> steps;
    Halide::Internal::Scope<Halide::Internal::ModulusRemainder> lets;  // around a step
};

}  // namespace heed
