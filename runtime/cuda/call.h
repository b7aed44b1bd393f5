// The arguments of an attention kernel on CUDA.
#pragma once

#include "runtime/cuda/launches.h"
#include "runtime/halide_bridge.h"
#include "runtime/plan.h"

namespace heed {

// Where the rows of out and lse are.
template <typename Arguments>
void set_rows(const KernelCall &call, Arguments *arguments) {
    arguments->out = cuda::address_of(call.out.data);
    arguments->out_batch = cuda::stride_of(call.out, 3);
    arguments->out_token = cuda::stride_of(call.out, 2);
    arguments->out_head = cuda::stride_of(call.out, 1);
    arguments->lse = cuda::address_of(call.lse.data);
    arguments->lse_batch = cuda::stride_of(call.lse, 3);
    arguments->lse_token = cuda::stride_of(call.lse, 2);
    arguments->lse_head = cuda::stride_of(call.lse, 1);
}

// With the table of sequences, which put_sequences() writes. Addresses are the device's.
KernelCall make_cuda_call(const heed_plan &plan, const heed_args &args);

}  // namespace heed
