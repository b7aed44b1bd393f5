// The caller's metadata as CUDA kernels read it: a table of SequenceField and, of page tables on the host, a copy, both
// in the workspace.
#pragma once

#include "runtime/cuda/launches.h"
#include "runtime/plan.h"
#include "runtime/sequences.h"

namespace heed {

// Where the table is. Uniform problems (plan.sequence_kernel NULL) have none.
KernelBuffer sequence_table(const heed_plan &plan, const heed_args &args);

// Launches what writes it; INVALID_ARGUMENT for wrong values on the host. Metadata on the device are clamped there.
heed_status put_sequences(const heed_plan &plan, const heed_args &args, cuda::Launches *launches);

// The values of metadata on the host alone.
heed_status check_sequences(const heed_plan &plan, const heed_args &args);

}  // namespace heed
