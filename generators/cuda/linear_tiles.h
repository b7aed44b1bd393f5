#pragma once
// The kernel of heed_linear on CUDA (runtime/kernel.h: linear).

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

constexpr int linear_threads = 256;  // of a block
constexpr int linear_edge = 64;      // rows and columns of a block's tile

// y = x W^T + bias, sums in f32 in the order of k whatever the row's place: f32 arithmetic from tiles in shared memory,
// 4 x 4 results a thread.
Halide::Module linear_module(const std::string &name, ElementType type, const Halide::Target &target);
int linear_shared_bytes();

}  // namespace heed::cuda
