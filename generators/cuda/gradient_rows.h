#pragma once
// The kernel column_sums of gradients of layers.

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

constexpr int sum_columns = 32;  // of a block of column_sums: a lane each

constexpr int column_sums_shared_bytes = 256 / 32 * sum_columns * 4;

// Sums of columns over slices of rows, in f32 and an order of their own: warps over rows in turn, then the warps.
Halide::Module column_sums_module(const std::string &name, ElementType type, const Halide::Target &target);

}  // namespace heed::cuda
