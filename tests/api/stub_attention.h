// The plain loops of the stub kernels: one task of one call.
#pragma once

#include <HalideRuntime.h>

#include <initializer_list>

#include "runtime/kernel.h"

namespace stub {

inline const halide_buffer_t &buffer_at(void **args, int index) {
    return *static_cast<const halide_buffer_t *>(args[index]);
}

template <typename T>
T scalar_at(void **args, int index) {
    return *static_cast<const T *>(args[index]);
}

// Computes the rows of one task, dropout apart. `weights` holds max_kv_len floats.
void compute_task(const heed::Kernel &kernel, void **args, int32_t task, float *weights);

}  // namespace stub
