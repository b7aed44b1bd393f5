#pragma once
// The kernel that transposes matrices for the gradients of dense layers.

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

constexpr int transpose_tile = 32;  // rows and columns that a block turns

constexpr int transpose_shared_bytes() { return transpose_tile * (transpose_tile + 1) * 4; }

// to [columns, to_columns] of from [rows, columns], zeros after column `rows` of it.
Halide::Module transpose_module(const std::string &name, ElementType type, const Halide::Target &target);

}  // namespace heed::cuda
