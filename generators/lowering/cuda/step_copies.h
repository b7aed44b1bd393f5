#pragma once
// The copies of one step of a loop from tensors to shared memory (PipelineCopies): addresses in two parts, of which
// what does not depend on the step is computed before the loop.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "Halide.h"
#include "generators/lowering/cuda/linear_terms.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

struct TakenCopy {
    SharedCopy copy;
    Halide::Expr condition;  // of the branches around it; undefined for none
};

class StepCopies {
public:
    // sizes: elements of a buffer, by array; test: of a whole step, undefined for none; finds_bounds, in_branches: see
    // PipelineCopies.
    StepCopies(const Halide::Internal::For *loop, const std::vector<TakenCopy> &copies,
               const std::map<std::string, int> &sizes, Halide::Expr test, bool finds_bounds, bool in_branches);

    // Which arrays are copied to: `early` ones or the others; all where it is not asked.
    enum class Which { all, early, late };
    void tell_early(std::set<std::string> arrays) { early = std::move(arrays); }
    bool is_early(const std::string &array) const { return early.count(array) != 0; }
    // Arrays have one buffer.
    void have_one_buffer() { has_one_buffer = true; }

    // The copies of a step, as a group of their own, or of the next ones'.
    Halide::Internal::Stmt of(const Halide::Expr &step, Which which = Which::all) const;
    Halide::Internal::Stmt begin(const Halide::Expr &step, Which which = Which::all) const;

    // A value that is computed before the loop, once; and these values around it.
    Halide::Expr let_before(const std::string &name, const Halide::Expr &value);
    Halide::Internal::Stmt with_values_before(const Halide::Internal::Stmt &loops) const;

private:
    using Expr = Halide::Expr;
    using Stmt = Halide::Internal::Stmt;

    struct Source {
        TakenCopy taken;
        Expr first;          // address of step 0, where only the index depends on the step
        Expr base, of_step;  // else the terms of the address
        Expr behind;         // .. or what is added to that of the copy before
    };
    const Halide::Internal::For *const loop;
    const std::map<std::string, int> &sizes;
    const Expr test;
    const bool finds_bounds, in_branches;
    bool has_one_buffer = false;
    std::set<std::string> early;
    std::vector<Source> sources;
    using Values = std::vector<std::pair<std::string, Expr>>;
    Values before, at_each_step;                                  // the loop
    std::map<Expr, Expr, Halide::Internal::IRDeepCompare> known;  // of both

    Expr at_step(const Expr &e, const Expr &step) const;
    Expr let_at_step(const Expr &value);
    void add(TakenCopy taken);
    Expr compared_before(const Expr &on);
    Expr address_at(const Source &source, const Expr &step, const Expr &before) const;
};

}  // namespace heed
