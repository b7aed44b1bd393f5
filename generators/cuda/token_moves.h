#pragma once
// Kernels that move rows of heads from tokens to tokens (HEED_CUDA_MOVE_TOKENS: rope, kv_append and kv_copy). One
// launch moves up to num_move_segments segments, runs of neighbouring tokens, whose places travel as its parameters.

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

constexpr int move_threads = 256;  // of a block

// Copies rows, the first 2 * num_pairs elements rotated by tables.
Halide::Module rope_module(const std::string &name, ElementType type, const Halide::Target &target);

// The same, rounded to `type` and then quantised to int8 with a scale per row.
Halide::Module kv_append_module(const std::string &name, ElementType type, const Halide::Target &target);

// Copies rows of bytes.
Halide::Module kv_copy_module(const std::string &name, const Halide::Target &target);

}  // namespace heed::cuda
