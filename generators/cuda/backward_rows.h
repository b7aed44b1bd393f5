#pragma once
// The kernels of heed_attention_backward on CUDA that no tensor core helps (runtime/kernel.h: CUDA attention_backward).

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

constexpr int backward_threads = 256;  // of a block
constexpr int sinks_shared_bytes = 4 * backward_threads / 32;

// `stats` of all rows, from out, lse and dout: a warp has a row. Rows that see no key, and rows after the last one up
// to stat_rows, get an lse under which every weight is 0.
Halide::Module backward_stats_module(const std::string &name, ElementType type, const Halide::Target &target);

// dsink, from `stats`: a block has a head.
Halide::Module backward_sinks_module(const std::string &name, ElementType type, const Halide::Target &target);

}  // namespace heed::cuda
