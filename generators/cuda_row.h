#pragma once
// The part of the driver that makes CUDA rows: program, schedule, machine code.

#include <string>

#include "attention_config.h"
#include "options.h"

namespace heed {

// Whether an ISA of the table is a CUDA compute capability.
bool is_cuda_isa(const std::string &isa);

// Why a CUDA row of this config cannot exist; empty when it can.
std::string cuda_error(const std::string &isa, const AttentionConfig &config);

// Fills the tile sizes of a CUDA row.
void fit_cuda_tiles(const std::string &isa, AttentionConfig &config);

// Makes `base`.o and .limits: what ptxas says of registers, spills and shared memory. Options read: ptxas, fatbinary
// (programs), capabilities (e.g. "80 90"), write. Throws with a sentence.
void generate_cuda_attention(const std::string &name, const std::string &isa, const AttentionConfig &config,
                             Options &options, const std::string &base);
// Whether a CUDA row of the operation can be made. `codes`: keys are int8.
bool has_cuda_op(const std::string &op, const std::string &isa, bool codes);

void generate_cuda_op(const std::string &name, const std::string &op, const std::string &isa, ElementType type,
                      bool codes, Options &options, const std::string &base);

}  // namespace heed
