#pragma once
// The kernel that merges attention states (runtime/kernel.h: merge_states on CUDA).

#include <string>

#include "../element_type.h"
#include "Halide.h"

namespace heed::cuda {

constexpr int max_merge_states = 64, merge_state_words = 2;
constexpr int merge_threads = 256;  // of a block

// The formulas of generators/merge_states.cpp; a thread has 16 bytes, or one element, of a row.
Halide::Module merge_states_module(const std::string &name, ElementType type, const Halide::Target &target);

}  // namespace heed::cuda
