#pragma once
// Lowering pass: loops ask for rows of their inputs that they, or those after them, read later. Left alone, the
// prefetchers of the cache fall behind where much is computed per row, and start anew with every block (decoding with
// one thread, four query rows, keys of bf16 in DRAM that gives 41 GB/s: 20 GB/s without this pass, 27 GB/s with it).

#include <map>
#include <set>
#include <string>
#include <vector>

#include "Halide.h"
#include "generators/lowering/prefetch_line.h"

namespace heed {

// In each loop whose name contains one of `loops`: once per cache line of an input that an iteration reads as whole
// vectors, a prefetch for each entry of that input. An address outside of `rows` does no harm. (Halide's own prefetch
// bypasses L2, which tasks that share keys need.)
class PrefetchRows : public Halide::Internal::IRMutator {
public:
    struct Ahead {
        std::string input, rows;  // the element of `rows` in the place of the input's, a vector of equal type,
        Halide::Expr distance;    // and so many elements after it, Int(32) or Int(64)
        // Where a table says where a key is, in buffers whose names begin so: the place of the key so many later.
        std::string table = "";
        int keys = 0;
        Halide::Expr same_keys = {};  // where it holds, it is the place of the key itself
        Wanted wanted = Wanted::in_l2;
    };

    PrefetchRows(std::vector<std::string> loops, std::vector<Ahead> ahead)
        : loops(std::move(loops)), ahead(std::move(ahead)) {}

    // Rows of dimension 2 of an input.
    static Halide::Expr stride(const std::string &input) {
        return Halide::Internal::Variable::make(Halide::Int(32), input + ".stride.2");
    }
    // As many elements as all of an input of three dimensions has.
    static Halide::Expr all_rows(const std::string &input) {
        return stride(input) * Halide::Internal::Variable::make(Halide::Int(32), input + ".extent.2");
    }

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;

private:
    Halide::Internal::Stmt with_prefetches(const Halide::Expr &value, Halide::Internal::Stmt result);

    const std::vector<std::string> loops;
    const std::vector<Ahead> ahead;
    bool in_loop = false;
    std::set<std::string> seen;                 // lines of the innermost loop
    std::map<std::string, Halide::Expr> known;  // what its names stand for
};

}  // namespace heed
