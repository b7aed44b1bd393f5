#pragma once
// The gradient of the bias on CUDA (runtime/kernel.h: CUDA attention_backward_bias).

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

constexpr int bias_threads = 256;  // of a block
constexpr int bias_shared_bytes = 4 * bias_threads / 32;

// Each element of dbias is the sum of the gradients of the logits that share it, each from its two products: simple,
// not fast. Few logits are a thread's, more are those of a block in an order that depends on their number alone.
Halide::Module backward_bias_module(const std::string &name, ElementType type, const Halide::Target &target);

}  // namespace heed::cuda
