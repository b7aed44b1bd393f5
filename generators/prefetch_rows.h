#pragma once
// Lowering pass: loops over the keys of a block ask for the rows of k and v some keys ahead. Left alone, the
// prefetchers of the cache fall behind where much is computed per row, and start anew with every block (one thread,
// four query rows, keys of bf16 in DRAM that gives 41 GB/s: 20 GB/s without this pass, 27 GB/s with it).

#include <set>
#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

// In each loop whose name contains one of `loops`: once per cache line of the inputs k and v that an iteration reads as
// whole vectors, PREFETCHT0 `keys` rows (dimension 2) further on. An address outside of the input does no harm.
// (Halide's own prefetch bypasses L2, which tasks that share keys need.)
class PrefetchRows : public Halide::Internal::IRMutator {
public:
    PrefetchRows(std::vector<std::string> loops, Halide::Expr keys) : loops(std::move(loops)), keys(std::move(keys)) {}

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;

private:
    Halide::Internal::Stmt with_prefetches(const Halide::Expr &value, Halide::Internal::Stmt result);

    const std::vector<std::string> loops;
    const Halide::Expr keys;
    bool in_loop = false;
    std::set<std::string> seen;  // lines of the innermost loop
};

}  // namespace heed
