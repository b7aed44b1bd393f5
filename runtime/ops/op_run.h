// Runs the blocks of one operation on the threads of its heed_execution.
#pragma once

#include <algorithm>

#include "runtime/backend.h"
#include "runtime/view.h"

namespace heed {

// Device, threads, pool. A NULL execution is one with all fields zero.
heed_status check_execution(const heed_execution *execution);

// Runs block `index` and returns 0 or a kernel's negative code with its sentence in `message`.
using OpBlock = int (*)(const void *context, int64_t index, int32_t item, char (&message)[512]);

// Threads that pay for an operation that moves `bytes`, at most max_op_threads.
constexpr int32_t max_op_threads = 1024;
int32_t op_threads(const heed_execution *execution, double bytes);

// Calls block(context, i, item, message) for every i in 0..num_blocks-1, each exactly once, on num_threads items; one
// item runs one block at a time, item is 0..num_threads-1. `name` is the API function for the sentence of a failure.
heed_status run_op_blocks(const char *name, const heed_execution *execution, int32_t num_threads, int64_t num_blocks,
                          OpBlock block, const void *context);

// The same for a callable `int (int64_t index, int32_t item, char (&message)[512])`.
template <typename Block>
heed_status run_op(const char *name, const heed_execution *execution, int32_t num_threads, int64_t num_blocks,
                   const Block &block) {
    const OpBlock call = [](const void *context, int64_t index, int32_t item, char(&message)[512]) {
        return (*static_cast<const Block *>(context))(index, item, message);
    };
    return run_op_blocks(name, execution, num_threads, num_blocks, call, &block);
}

// Calls body(first, count, message) -> int for each `share` of [0, size), on the threads that moving `bytes` pays for.
template <typename Body>
heed_status run_shares(const char *name, const heed_execution *execution, double bytes, int64_t size, int64_t share,
                       const Body &body) {
    const auto block = [&](int64_t index, int32_t, char(&message)[512]) {
        const int64_t first = index * share;
        return body(first, narrow(std::min(share, size - first)), message);
    };
    return run_op(name, execution, op_threads(execution, bytes), (size + share - 1) / share, block);
}

}  // namespace heed
