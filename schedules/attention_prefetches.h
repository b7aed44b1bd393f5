#pragma once
// What the x86 schedules with rows as lanes ask memory for before it is read.

#include <string>

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"

namespace heed {

// Parts of the loop of a product in prefill, before each of which it may ask for values and rows of a bias; 0: none.
int product_bursts(const AttentionConfig &config);

void add_prefetches(Passes *passes, const AttentionStages &stages, const AttentionConfig &config);

// An element of an array of the loops.
Halide::Expr loaded(const std::string &array, const Halide::Expr &element);

}  // namespace heed
