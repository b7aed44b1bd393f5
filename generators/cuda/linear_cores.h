#pragma once
// The kernel of heed_linear on tensor cores: f16 and bf16 whose rows of x and W are whole chunks of 16 bytes.

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

constexpr int core_threads = 128;                  // of a block
constexpr int core_rows = 128, core_columns = 64;  // of a block's tile: a warp has 32 rows

Halide::Module linear_cores_module(const std::string &name, ElementType type, const Halide::Target &target);
int linear_cores_shared_bytes();

}  // namespace heed::cuda
