#pragma once
// Attention's gradients without tensor cores: products in f32, of any type, for head dims of any size
// (runtime/kernel.h: CUDA attention_backward).

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

constexpr int backward_tile_threads = 128;  // of a block
int backward_tile_shared_bytes();

Halide::Module backward_tiles_module(const std::string &name, ElementType type, const Halide::Target &target);

}  // namespace heed::cuda
