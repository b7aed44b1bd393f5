#pragma once
// What the x86 schedules ask memory for before it is read.

#include <string>

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"

namespace heed {

// Parts of the loop of a product, before each of which it may ask for values and rows of a bias, in decode for rows of
// keys and values; 0: none.
int product_bursts(const AttentionConfig &config);

// With rows as lanes: tiles of keys and values, rows of a bias.
void add_tile_prefetches(Passes *passes, const AttentionStages &stages, const AttentionConfig &config);

// Decode with elements as lanes: loops over the keys of a head ask for the rows that are read next, the next head's or
// those of later keys; loops over the heads of whole keys, where each head has several rows of queries, for what comes
// after them in memory.
void add_row_prefetches(Passes *passes, const AttentionStages &stages, const AttentionConfig &config);

// An element of an array of the loops.
Halide::Expr loaded(const std::string &array, const Halide::Expr &element);

}  // namespace heed
