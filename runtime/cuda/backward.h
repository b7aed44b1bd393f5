// heed_attention_backward on CUDA.
#pragma once

#include "heed/ops.h"
#include "plan.h"

namespace heed {

// Offsets in bytes, each a multiple of 128; in front of them the table of sequences. See kernel.h.
struct CudaBackwardLayout {
    int32_t stat_rows;
    int64_t stats, total;
};

// Bytes that suffice for every dense problem that is at most as large as this one in batch and max_q_len; -1 when 64
// bits do not hold them.
int64_t most_backward_bytes_on_cuda(const heed_problem &largest);

// NO_DEVICE without rows, UNSUPPORTED beyond what a launch can number.
heed_status lay_out_backward_on_cuda(const heed_plan &plan, CudaBackwardLayout *layout);

// Everything but the metadata's values is checked.
heed_status run_backward_on_cuda(const heed_plan &plan, const heed_args &args, const heed_gradients &gradients,
                                 const CudaBackwardLayout &layout);

}  // namespace heed
