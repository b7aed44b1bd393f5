#pragma once
// The kernel of heed_attention_probs on CUDA (runtime/kernel.h: attention_probs).

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

constexpr int probs_threads = 256;  // of a block

// The formulas of generators/attention/probs.cpp, kv_type `type` or i8. A warp has a query row and computes its scores
// once per pass: simple, not fast.
Halide::Module attention_probs_module(const std::string &name, ElementType type, ElementType kv_type,
                                      const Halide::Target &target);

}  // namespace heed::cuda
