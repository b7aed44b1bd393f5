// Keys and values as prefill kernels read them best: the rows of a head one after the other. In other layouts a head's
// keys are pages apart (the default layout, 8 heads of 128 floats: 4 KB), in few sets of a cache, out of reach of its
// prefetchers; each block of rows of each query head waits for them again.
#pragma once

#include "runtime/kernel_call.h"

namespace heed {

// Whether execute copies k and v first. Kernels that pack them read them once; few blocks of rows do not repay a copy.
bool makes_rows_dense(const heed_plan &plan);

// The bytes of the copies and of the list of what to copy.
Size dense_rows_bytes(const heed_plan &plan);

// Copies the keys and values that the tasks see to `memory`, of dense_rows_bytes(), and lets the call read them there.
heed_status make_rows_dense(const heed_plan &plan, const heed_execution &execution, char *memory, KernelCall *call);

}  // namespace heed
