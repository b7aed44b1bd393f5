#pragma once
// What makes machine code of CUDA kernels: the target, the tools, the files.

#include <string>

#include "generators/cuda/device_binary.h"
#include "generators/driver/options.h"

namespace heed {

// The compute capability of a CUDA ISA of the table.
int capability_of(const std::string &isa);

Halide::Target cuda_target();

// Options read: ptxas, fatbinary (programs), capabilities (e.g. "80 90", of which those from `isa` on count), write.
cuda::Toolkit read_toolkit(Options &options, const std::string &isa);

// `base`.o and `base`.limits: what ptxas says of registers, spills and shared memory.
void write_cuda_kernel(const cuda::DeviceBinary &binary, int shared_bytes, const std::string &base);

}  // namespace heed
