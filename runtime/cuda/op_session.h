// The device of one operation around attention.
#pragma once

#include <climits>
#include <optional>

#include "runtime/cuda/contexts.h"
#include "runtime/cuda/launches.h"

namespace heed::cuda {

// The kernel that serves an operation, and the context of the execution's stream: current on this thread while the
// session lives.
class OpSession {
public:
    // Once. NO_DEVICE without a driver or a kernel for the chip, INVALID_ARGUMENT for a stream or context that cannot
    // be used. No kernel for more than compute capability `limit` is taken. score_mod: as best_cuda_op_kernel().
    heed_status open(const heed_execution &execution, Op op, heed_dtype dtype, heed_dtype kv_dtype, int limit = INT_MAX,
                     const char *score_mod = "");

    // Another kernel for the same chip, as open() finds one.
    heed_status find(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **kernel,
                     const char *score_mod = "") const;

    template <typename Arguments>
    heed_status launch(const Arguments &arguments) {
        return launch_op(*kernel_, arguments, *launches_);
    }

    int capability() const { return context_.capability(); }  // of the chip
    const OpKernel &kernel() const { return *kernel_; }
    Launches &launches() { return *launches_; }

private:
    const OpKernel *kernel_ = nullptr;
    ScopedContext context_;
    std::optional<Launches> launches_;
};

// One launch of the kernel that serves an operation.
template <typename Arguments>
heed_status launch(const heed_execution &execution, Op op, heed_dtype dtype, const Arguments &arguments) {
    OpSession session;
    const heed_status status = session.open(execution, op, dtype, dtype);
    return status ? status : session.launch(arguments);
}

}  // namespace heed::cuda
