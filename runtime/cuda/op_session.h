// The device of one operation around attention.
#pragma once

#include <climits>
#include <optional>

#include "cuda/contexts.h"
#include "cuda/launches.h"

namespace heed::cuda {

// The row that serves an operation, and the context of the execution's stream: current on this thread while the session
// lives.
class OpSession {
public:
    // Once. NO_DEVICE without a driver or a row for the chip, INVALID_ARGUMENT for a stream or context that cannot be
    // used. No row for more than compute capability `limit` is taken.
    heed_status open(const heed_execution &execution, Op op, heed_dtype dtype, heed_dtype kv_dtype,
                     int limit = INT_MAX);

    // Another row for the same chip, as open() finds one.
    heed_status find(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **row) const;

    int capability() const { return context_.capability(); }  // of the chip
    const OpKernel &row() const { return *row_; }
    Launches &launches() { return *launches_; }

private:
    const OpKernel *row_ = nullptr;
    ScopedContext context_;
    std::optional<Launches> launches_;
};

}  // namespace heed::cuda
