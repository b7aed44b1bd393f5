#pragma once
// A CUDA attention kernel: the arguments of every attention kernel around a program for the device.

#include "generators/attention/config.h"
#include "generators/cuda/attention_tile.h"
#include "generators/cuda/launch.h"

namespace heed::cuda {

// The host side and its launch; its device code is not assembled yet.
Halide::Module attention_module(const std::string &name, const AttentionConfig &config, const AttentionTile &tile,
                                const Halide::Target &target);

// Bytes of shared memory of a block.
int attention_shared_bytes(const AttentionConfig &config, const AttentionTile &tile);

}  // namespace heed::cuda
