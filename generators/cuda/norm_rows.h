#pragma once
// Layer norm on CUDA and its gradient (runtime/kernel.h: layer_norm, layer_norm_gradient); a warp per row.

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

// The formulas of generators/ops/layer_norm.cpp, in place.
Halide::Module layer_norm_module(const std::string &name, ElementType type, const Halide::Target &target);

// dy becomes dx; the products of dy with the normalised row, whose sums over rows are the weight's gradient, are f32.
Halide::Module layer_norm_gradient_module(const std::string &name, ElementType type, const Halide::Target &target);

}  // namespace heed::cuda
