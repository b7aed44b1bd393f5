#pragma once
// The kernel that merges attention states (HEED_CUDA_MERGE_STATES).

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

constexpr int merge_threads = 256;  // of a block

// The formulas of generators/ops/merge_states.cpp; a thread has 16 bytes, or one element, of a row.
Halide::Module merge_states_module(const std::string &name, ElementType type, const Halide::Target &target);

}  // namespace heed::cuda
