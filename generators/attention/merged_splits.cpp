#include "generators/attention/merged_splits.h"

#include "generators/attention/logits.h"

namespace heed {

using namespace Halide;

namespace {

std::vector<Expr> in_split(const Expr &split, const std::vector<Var> &row) {
    std::vector<Expr> place = {split};
    place.insert(place.end(), row.begin(), row.end());
    return place;
}

}  // namespace

void MergedSplits::define(const SplitStates &in, const Var &split, const std::vector<Var> &of_row) {
    row = of_row;
    over_splits = RDom(0, in.num_splits, "over_splits");
    split_max(row) = lowest_logit();
    split_max(row) = in.maximum(split_max(row), in.row_max(over_splits));
    split_factor(in_split(split, row)) = in.power(in.row_max(split) - split_max(row));
}

void MergedSplits::add(FuncRef sum, const Expr &of_split) const {
    sum += of_split * split_factor(in_split(over_splits, row));
}

}  // namespace heed
