#pragma once
// Kernels of whole layers, between projections and attention (runtime/kernel.h: layer_norm, clip and key_padding on
// CUDA).

#include <string>

#include "../element_type.h"
#include "Halide.h"

namespace heed::cuda {

constexpr int layer_threads = 256;  // of a block

// The formulas of generators/layer_norm.cpp, in place; a warp per row.
Halide::Module layer_norm_module(const std::string &name, ElementType type, const Halide::Target &target);

// Clamps elements in place to [-limit, limit]; NaN stays NaN. A thread has 16 bytes, or one element.
Halide::Module clip_module(const std::string &name, ElementType type, const Halide::Target &target);

// A mask joined with the padding of its keys, as a mask or as a bias; a thread per element.
Halide::Module key_padding_module(const std::string &name, const Halide::Target &target);

}  // namespace heed::cuda
