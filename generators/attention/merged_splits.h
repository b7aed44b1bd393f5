#pragma once
// The states that splits of the keys leave of a row as one: what a split has summed up shrinks by how far its maximum
// is below the largest.

#include <functional>
#include <vector>

#include "Halide.h"

namespace heed {

// `power` is of differences that are not positive, in the units of the maxima.
struct SplitStates {
    Halide::Expr num_splits;
    std::function<Halide::Expr(const Halide::Expr &split)> row_max;  // the lowest logit, or lower, without keys
    Halide::Expr (*power)(const Halide::Expr &);
    Halide::Expr (*maximum)(const Halide::Expr &, const Halide::Expr &);
};

struct MergedSplits {
    Halide::Func split_max{"split_max"};        // (row ..): of all splits of a row
    Halide::Func split_factor{"split_factor"};  // (split, row ..)
    Halide::RDom over_splits;

    // row: what names a row in the states and then in the Funcs.
    void define(const SplitStates &in, const Halide::Var &split, const std::vector<Halide::Var> &row);
    // Adds up what each of over_splits has summed up for a row.
    void add(Halide::FuncRef sum, const Halide::Expr &of_split) const;

private:
    std::vector<Halide::Var> row;
};

}  // namespace heed
