#pragma once
// What makes kernels of operations on CUDA.

#include <functional>

#include "schedules/operation.h"

namespace heed {

struct CudaForm {
    Op op;
    int threads;  // of a block
    std::function<Halide::Module(const OpSpec &)> make;
    int shared_bytes = 0;
    bool on_tensor_cores = false;  // of sm80
    int head_dim = 0;              // that the form is for; 0: any
    int blocks = 1;                // that an SM's registers are to hold
};

// For a kernel of the contract's table.
const CudaForm &find_cuda_form(const OpSpec &spec);

}  // namespace heed
