#pragma once
// Attention on tensor cores: f16 and bf16, from sm_80 on.

#include "generators/ops/attention_device.h"

namespace heed {

// Whether a kernel is of this form: without dropout and score functions, prefill of all head dims, decode of up to 128.
// The others are programs.
bool is_tensor_form(const AttentionConfig &config);
AttentionDevice::Tile attention_tensor_tile(const AttentionConfig &config);
int attention_tensor_threads();
int attention_tensor_blocks(const AttentionConfig &config);  // that an SM's registers are to hold
int attention_tensor_shared_bytes(const AttentionConfig &config);
Halide::Module attention_tensor_cuda(const std::string &name, const AttentionConfig &config,
                                     const Halide::Target &target);

}  // namespace heed
