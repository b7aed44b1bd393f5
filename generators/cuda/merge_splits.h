#pragma once
// Merges what the splits of a CUDA decode kernel left (runtime/kernel.h: merge_splits): one block per row of out.

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

constexpr int merge_splits_threads = 64;  // of a block

// Inputs states f32 (float, head and split, token, batch) and sink f32 (head); int32 num_splits; outputs out, in
// `type`, and lse f32, both (d, head, token, batch).
Halide::Module merge_splits_module(const std::string &name, ElementType type, const Halide::Target &target);

}  // namespace heed::cuda
