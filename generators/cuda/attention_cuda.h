#pragma once
// A CUDA attention row: the arguments of every attention kernel around a program for the device.

#include "../attention_config.h"
#include "launch.h"
#include "prefill_tile.h"

namespace heed::cuda {

// The host side and its launch, on tensor cores; its device code is not assembled yet.
Halide::Module prefill_module(const std::string &name, const AttentionConfig &config, const PrefillTile &tile,
                              const Halide::Target &target);

}  // namespace heed::cuda
