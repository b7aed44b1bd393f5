// The tensors and arrays that a problem reads, and its workspace.
#pragma once

#include "runtime/plan.h"
#include "runtime/ranges.h"
#include "runtime/validate.h"

namespace heed {

enum class Reads { all, no_values };  // no_values: v and its scales are left out

// Adds a tensor that the plan's problem declares. Refuses one that it does not: it would be ignored in silence.
heed_status add_declared(bool declared, const char *name, const heed_tensor &tensor, heed_dtype dtype, const View &view,
                         Access access, MemoryRanges *ranges);

// Checks the workspace, and device_status where the problem has it. WORKSPACE_TOO_SMALL.
heed_status add_workspace(const heed_plan &plan, const heed_args &args, MemoryRanges *ranges);

// Checks the inputs of `args` that the problem has: type, capacity, alignment, no overlap with what `ranges` holds as
// written. Nothing is read through them.
heed_status add_inputs(const heed_problem &problem, const ProblemViews &views, const heed_args &args, Reads reads,
                       MemoryRanges *ranges);

// The buffers that the kernel's score_mod reads: type, size, alignment, no overlap with what `ranges` holds as written.
heed_status add_score_buffers(const Kernel &kernel, const heed_args &args, MemoryRanges *ranges);

}  // namespace heed
