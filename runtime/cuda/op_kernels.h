// Which op kernel serves a chip.
#pragma once

#include "runtime/kernel.h"

namespace heed {

// The compute capability that a CUDA kernel needs, 10 * major + minor.
int32_t required_capability(Capability capability);

// Whether kernels of `own` run on a chip of a compute capability.
bool serves_chip(Capability own, int capability);

// find_cuda_op_kernel, of kernels for chips up to a compute capability. score_mod: the kernel's score function, "" for
// none; UNSUPPORTED where there is none with it.
heed_status best_cuda_op_kernel(Op op, heed_dtype dtype, heed_dtype kv_dtype, int capability, const OpKernel **kernel,
                                const char *score_mod = "");

// The kernel of attention_backward_keys or _queries, plain or not, for the narrowest heads that are not narrower than
// head_dim, or NULL.
const OpKernel *find_backward_cores(Op op, heed_dtype dtype, int32_t head_dim, int capability,
                                    const char *score_mod = "");

}  // namespace heed
