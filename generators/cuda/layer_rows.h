#pragma once
// Kernels of whole layers, between projections and attention (runtime/kernel.h: clip and key_padding on CUDA).

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

// Clamps elements in place to [-limit, limit]; NaN stays NaN. A thread has 16 bytes, or one element.
Halide::Module clip_module(const std::string &name, ElementType type, const Halide::Target &target);

// A mask joined with the padding of its keys, as a mask or as a bias; a thread per element.
Halide::Module key_padding_module(const std::string &name, const Halide::Target &target);

}  // namespace heed::cuda
