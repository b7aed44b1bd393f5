#include "runtime/heuristics.h"

#include <algorithm>

#include "runtime/view.h"

namespace heed {
namespace {

// A split is long enough to hide its merge (up to 16 partial rows against 512 keys, more against 1024: by 512 keys, 32
// rows of floats take 8 % of the time), and a long cache gives 32 of them.
constexpr int64_t min_split_len = 512, min_split_of_many_rows = 1024, many_rows = 16, max_split_len = 4096;
constexpr int32_t splits_of_long_cache = 32;

// So many that the last ones to finish are few compared with all.
constexpr int32_t tasks_per_thread = 4;

// So many that it hardly counts which ones are the last to finish.
constexpr int32_t many_tasks_per_thread = 64;

// Waking a thread costs some 5 to 20 us; at 30 to 100 GFLOP/s a core does about this much meanwhile.
constexpr double flops_per_thread = 1 << 20;

// Or reads so much at 15 to 50 GB/s: steps of decoding compute little with each key.
constexpr double bytes_per_thread = 1 << 18;

// A part of packed keys, and the states of the tasks that take turns with it, in an L2 cache of 2 MiB. Measured as for
// most_whole_bytes, 2816 and 3072 keys: parts of 512 KiB 5.4 and 5.7 ms, of 768 5.15 and 5.5, of 1024 5.4 and 5.6.
constexpr int64_t part_bytes = 768 << 10, bundle_bytes = 768 << 10;

}  // namespace

Splits choose_splits(int32_t max_kv_len, int32_t kv_block, int32_t requested, int64_t task_rows) {
    const int64_t kv_len = std::max(max_kv_len, 1);
    const int64_t shortest = task_rows >= many_rows ? min_split_of_many_rows : min_split_len;
    const int64_t wanted = requested > 0 ? (kv_len + requested - 1) / requested
                                         : std::clamp(kv_len / splits_of_long_cache, shortest, max_split_len);
    const int64_t split_len = round_up(wanted, std::max(kv_block, 1));
    return {static_cast<int32_t>((kv_len + split_len - 1) / split_len), split_len};
}

TaskShape choose_task_shape(const TaskShapeRequest &request) {
    int32_t bundles = (request.row_blocks + request.task_blocks - 1) / request.task_blocks;
    const int64_t heads_and_parts = request.parts * request.num_kv_heads;
    while (bundles < request.row_blocks && heads_and_parts * bundles < request.num_threads) bundles++;
    TaskShape shape;
    shape.row_blocks = (request.row_blocks + bundles - 1) / bundles;
    if (!request.heads_inside) return shape;
    const auto fits = [&](int32_t heads) {
        const int64_t tasks = request.parts * bundles * (request.num_kv_heads / heads);
        return request.num_kv_heads % heads == 0 && heads * shape.row_blocks <= request.task_blocks &&
               tasks >= int64_t{tasks_per_thread} * request.num_threads;
    };
    for (int32_t heads = 2; heads <= request.num_kv_heads; heads++) {
        if (fits(heads)) shape.heads = heads;
    }
    return shape;
}

int32_t most_splits(int32_t max_kv_len, int32_t kv_block) {
    // A split has at least 512 keys, and up to 32 * 4096 keys at least a 32nd of them, rounded down: one more split may
    // hold the rest.
    const int64_t by_length = std::max(max_kv_len, 1) / min_split_len + 1;
    const int64_t longest = std::max<int64_t>(max_split_len, kv_block);
    return static_cast<int32_t>(
        std::min(by_length, std::max<int64_t>(splits_of_long_cache + 1, max_kv_len / longest + 1)));
}

int32_t tasks_at_once(int32_t num_tasks, int32_t num_threads, int32_t together) {
    return num_tasks / together >= 2 * num_threads ? together : 1;
}

bool takes_shares(Phase phase, int32_t num_tasks, int32_t num_threads) {
    return phase == Phase::decode || num_tasks / many_tasks_per_thread >= num_threads;
}

int32_t choose_part_keys(int64_t key_bytes, int32_t kv_block) {
    const int64_t blocks = part_bytes / std::max<int64_t>(key_bytes * kv_block, 1);
    return static_cast<int32_t>(std::max<int64_t>(blocks, 1) * kv_block);
}

int32_t choose_bundle(int64_t num_tasks, int32_t num_threads, int64_t state_bytes) {
    const int64_t of_thread = num_tasks / (int64_t{tasks_per_thread} * std::max(num_threads, 1));
    const int64_t most = std::max<int64_t>(bundle_bytes / std::max<int64_t>(state_bytes, 1), 1);
    return static_cast<int32_t>(std::clamp<int64_t>(of_thread, 1, most));
}

int32_t choose_threads(double flops, double bytes, int32_t limit) {
    const double worth = std::max(flops / flops_per_thread, bytes / bytes_per_thread);
    return static_cast<int32_t>(std::clamp(worth, 1.0, static_cast<double>(limit)));
}

}  // namespace heed
