// Dense layers of few columns, whose kernels read x where it is.
#pragma once

#include "runtime/kernel_arguments.h"
#include "runtime/ops/linear.h"

namespace heed {

// Leaves those kernels that write `out` and whose tiles of rows, so many bytes apart, stay in the L1 cache also where
// these share its sets.
InPlaceKernels serving(InPlaceKernels kernels, int64_t row_bytes, heed_dtype out);

// weight: whole panels.
int multiply_in_place(const InPlaceKernels &kernels, const LinearInPlaceArguments &all, char (&message)[512]);

// Whether packing x would be a large part of the call's work, and kernels of linear_in_place serve it.
bool reads_x_in_place(const LinearCall &call);

heed_status run_in_place(const LinearCall &call);

}  // namespace heed
