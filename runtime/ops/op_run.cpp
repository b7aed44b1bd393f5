#include "runtime/ops/op_run.h"

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "runtime/cpu.h"
#include "runtime/float_environment.h"
#include "runtime/halide_bridge.h"
#include "runtime/status.h"
#include "runtime/thread_pool.h"

namespace heed {
namespace {

// What a thread moves in the time that waking it takes: some 10 us at 25 GB/s.
constexpr double bytes_per_thread = 256 << 10;

struct Loop {
    OpBlock block;
    const void *context;
    int64_t num_blocks;
    int32_t num_items;
    std::atomic<int64_t> next{0};
    std::atomic<int32_t> code{0};
    char message[512] = {};  // of the first failure
};

void run_item(void *item_context, int32_t item) {
    auto &loop = *static_cast<Loop *>(item_context);
    if (item < 0 || item >= loop.num_items) return;
    const DefaultFloatEnvironment environment;
    while (loop.code.load(std::memory_order_relaxed) == 0) {
        const int64_t index = loop.next.fetch_add(1, std::memory_order_relaxed);
        if (index >= loop.num_blocks) return;
        char message[512] = "";
        const int32_t code = loop.block(loop.context, index, item, message);
        int32_t none = 0;
        if (code != 0 && loop.code.compare_exchange_strong(none, code)) {
            std::snprintf(loop.message, sizeof(loop.message), "%s", message);
        }
    }
}

}  // namespace

heed_status check_execution(const heed_execution *execution) {
    if (execution == nullptr) return HEED_OK;
    if (execution->device != HEED_CPU && execution->device != HEED_CUDA) {
        return fail(HEED_INVALID_ARGUMENT, "execution.device is %d; it must be HEED_CPU (0) or HEED_CUDA (1)",
                    static_cast<int>(execution->device));
    }
    if (execution->num_threads < 0 || execution->num_threads > max_op_threads) {
        return fail(HEED_INVALID_ARGUMENT, "execution.num_threads is %d; it must be 0 or 1..%d", execution->num_threads,
                    max_op_threads);
    }
    if (execution->pool != nullptr && execution->pool->run == nullptr) {
        return fail(HEED_INVALID_ARGUMENT,
                    "execution.pool->run is NULL; it must be a function, or pool NULL for Heed's threads");
    }
    return HEED_OK;
}

int32_t op_threads(const heed_execution *execution, double bytes) {
    const int32_t asked = execution == nullptr ? 0 : execution->num_threads;
    const int32_t limit = asked > 0 ? asked : std::min(cpu_count(), max_op_threads);
    return static_cast<int32_t>(std::clamp(bytes / bytes_per_thread, 1.0, static_cast<double>(limit)));
}

heed_status run_op_blocks(const char *name, const heed_execution *execution, int32_t num_threads, int64_t num_blocks,
                          OpBlock block, const void *context) {
    install_halide_handlers();
    Loop loop{block, context, num_blocks, 1};
    loop.num_items = static_cast<int32_t>(std::min<int64_t>(num_threads, num_blocks));
    if (loop.num_items <= 1) {
        loop.num_items = 1;
        run_item(&loop, 0);
    } else if (execution != nullptr && execution->pool != nullptr) {
        execution->pool->run(execution->pool->context, loop.num_items, run_item, &loop);
    } else {
        run_on_shared_pool(loop.num_items, run_item, &loop);
    }
    if (loop.code.load() != 0) {
        return fail(HEED_INTERNAL, "%s: a kernel failed with code %d: %s", name, loop.code.load(), loop.message);
    }
    if (loop.next.load() < num_blocks) {
        return fail(HEED_INTERNAL, "%s: the caller's heed_parallel_for returned before it ran its items", name);
    }
    return HEED_OK;
}

}  // namespace heed
