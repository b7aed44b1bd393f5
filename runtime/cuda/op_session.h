// The device of one operation around attention.
#pragma once

#include <optional>

#include "cuda/contexts.h"
#include "cuda/launches.h"

namespace heed::cuda {

// The row that serves an operation, and the context of the execution's stream: current on this thread while the session
// lives.
class OpSession {
public:
    // Once. NO_DEVICE without a row or a driver, INVALID_ARGUMENT for a stream or context that cannot be used,
    // UNSUPPORTED where the chip is older than the row.
    heed_status open(const heed_execution &execution, Op op, heed_dtype dtype, heed_dtype kv_dtype);

    const OpKernel &row() const { return *row_; }
    Launches &launches() { return *launches_; }

private:
    const OpKernel *row_ = nullptr;
    ScopedContext context_;
    std::optional<Launches> launches_;
};

}  // namespace heed::cuda
