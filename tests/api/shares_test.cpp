// How the tasks of a call spread over threads, as arithmetic: no kernel runs. ctest -R api.Shares -V prints the table.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

#include "runtime/cpu/key_copies.h"
#include "runtime/heuristics.h"
#include "runtime/tasks.h"

namespace {

constexpr double largest_share = 1.15;  // of a thread, in parts of the mean
constexpr int32_t head_dim = 128;

struct Heads {
    const char *name;
    int32_t num_heads, num_kv_heads;
};
constexpr Heads heads[] = {{"MQA", 32, 1}, {"GQA", 32, 8}, {"MHA", 32, 32}};

// The blocks of the kernels of head_dim 128 of AVX2, AVX-512 and AMX, of 64 of AMX.
struct Blocks {
    heed::Phase phase;
    int32_t row_block, kv_block, task_blocks;
};
constexpr Blocks blocks[] = {{heed::Phase::prefill, 24, 144, 1},
                             {heed::Phase::prefill, 48, 144, 1},
                             {heed::Phase::prefill, 32, 128, 1},
                             {heed::Phase::prefill, 64, 128, 1},
                             {heed::Phase::decode, 4, 32, 32}};

struct Lengths {
    int32_t q_len, kv_len;
};
constexpr Lengths prefill_lengths[] = {{384, 384}, {512, 512}, {777, 777}, {2048, 2048}, {256, 4096}};
constexpr Lengths decode_lengths[] = {{1, 8192}};

struct Share {
    int32_t tasks = 0, threads = 0;
    double largest = 0;  // of a thread, in parts of the mean
};

heed_problem problem_of(const Heads &h, int32_t batch, const Lengths &lengths, int32_t threads) {
    heed_problem p;
    heed_problem_init(&p);
    p.batch = batch;
    p.num_heads = h.num_heads;
    p.num_kv_heads = h.num_kv_heads;
    p.max_q_len = lengths.q_len;
    p.max_kv_len = lengths.kv_len;
    p.head_dim = p.head_dim_v = head_dim;
    p.causal = true;
    p.position = HEED_BOTTOM_RIGHT;
    p.scale = 1;
    p.max_threads = threads;
    return p;
}

// Pairs of a query and a key that a task looks at, [begin, end) of the keys.
double pairs_of(const int32_t *task, const heed::Kernel &kernel, int32_t group, int64_t begin, int64_t end) {
    const bool decode = kernel.phase == heed::Phase::decode;
    const int32_t num_rows = task[heed::task_q_len] * (decode ? group : 1), first = task[heed::task_first_row];
    const int32_t task_rows = kernel.row_block * task[heed::task_head_blocks];
    double pairs = 0;
    for (int32_t row = first; row < std::min(first + task_rows, num_rows); row++) {
        const int64_t query = decode ? row / group : row;
        const int64_t visible = std::min<int64_t>(task[heed::task_kv_len], query + task[heed::task_visible_end]);
        pairs += static_cast<double>(std::max<int64_t>(0, std::min(visible, end) - begin));
    }
    return pairs * task[heed::task_num_blocks] / task[heed::task_head_blocks];
}

// Each thread takes the next tasks of its share of them as soon as it is free, then those of the shares after it.
double largest_of(const std::vector<double> &costs, int32_t threads, int32_t together, int32_t num_shares) {
    struct Queue {
        size_t next, end;
    };
    std::vector<Queue> queues;
    for (size_t i = 0; i < static_cast<size_t>(num_shares); i++) {
        queues.push_back({i * costs.size() / num_shares, (i + 1) * costs.size() / num_shares});
    }
    using Thread = std::pair<double, int32_t>;  // when it is free, which
    std::priority_queue<Thread, std::vector<Thread>, std::greater<>> free;
    for (int32_t t = 0; t < threads; t++) free.push({0, t});
    double last = 0;
    while (!free.empty()) {
        auto [time, thread] = free.top();
        free.pop();
        last = std::max(last, time);
        for (int32_t i = 0; i < num_shares; i++) {
            Queue &queue = queues[static_cast<size_t>((thread + i) % num_shares)];
            const size_t end = std::min(queue.end, queue.next + static_cast<size_t>(together));
            if (queue.next == end) continue;
            while (queue.next < end) time += costs[queue.next++];
            free.push({time, thread});
            break;
        }
    }
    return last * threads / std::accumulate(costs.begin(), costs.end(), 0.0);
}

Share share_of(const heed_problem &problem, const Blocks &b) {
    heed::Kernel kernel = {};
    kernel.phase = b.phase;
    kernel.schedule = "x86";
    kernel.row_block = b.row_block;
    kernel.kv_block = b.kv_block;
    kernel.task_blocks = b.task_blocks;
    heed_problem p;
    heed::ProblemViews views;
    EXPECT_EQ(heed::check_problem(&problem, &p, &views), HEED_OK) << heed_last_error();
    heed_args args;
    heed_args_init(&args);
    const bool decode = b.phase == heed::Phase::decode;
    const heed::Splits splits =
        decode ? heed::choose_splits(p.max_kv_len, b.kv_block, 0) : heed::Splits{1, p.max_kv_len};
    heed::TaskShape shape = heed::task_shape(p, views, kernel, splits.num_splits);
    shape.whole_heads = heed::takes_whole_heads(p, views, kernel);
    std::vector<int32_t> table(static_cast<size_t>(heed::max_tasks(p, kernel, shape) * heed::num_task_fields));
    heed::Workload work;
    EXPECT_EQ(heed::resolve_tasks(p, views, kernel, args, {table.data()}, &work, shape), HEED_OK) << heed_last_error();

    const int32_t group = p.num_heads / p.num_kv_heads;
    std::vector<double> costs;
    for (int32_t split = 0; split < splits.num_splits; split++) {
        for (int32_t t = 0; t < work.num_tasks; t++) {
            costs.push_back(pairs_of(&table[static_cast<size_t>(t) * heed::num_task_fields], kernel, group,
                                     split * splits.split_len, (split + 1) * splits.split_len));
        }
    }
    Share share;
    share.tasks = static_cast<int32_t>(costs.size());
    share.threads =
        std::min(heed::choose_threads(4 * work.pairs * head_dim, 8 * work.keys * head_dim, p.max_threads), share.tasks);
    const int32_t task_rows = b.row_block * shape.row_blocks;
    const int32_t beside = decode ? (p.max_q_len * group + task_rows - 1) / task_rows : 1;
    const bool in_shares = shape.whole_heads || heed::takes_shares(b.phase, share.tasks, share.threads);
    share.largest = largest_of(costs, share.threads, heed::tasks_at_once(share.tasks, share.threads, beside),
                               in_shares ? std::min(share.threads, heed::most_shares) : 1);
    return share;
}

void expect_even_shares(const Blocks &b, const Heads &h, const Lengths &lengths) {
    for (const int32_t batch : {1, 8}) {
        for (const int32_t threads : {2, 8, 32, 64}) {
            const Share share = share_of(problem_of(h, batch, lengths, threads), b);
            std::printf("%-7s  %-5s  %5d  %6d  %4d  %5d  %15d  %4d  %6d  %13.3f\n",
                        b.phase == heed::Phase::decode ? "decode" : "prefill", h.name, lengths.q_len, lengths.kv_len,
                        b.row_block, batch, threads, share.threads, share.tasks, share.largest);
            EXPECT_LE(share.largest, largest_share);
        }
    }
}

TEST(Shares, NoThreadHasMuchMoreThanTheMean) {
    std::printf("phase    heads  q_len  kv_len  rows  batch  threads allowed  used   tasks  largest share\n");
    for (const Blocks &b : blocks) {
        const bool decode = b.phase == heed::Phase::decode;
        for (const Heads &h : heads) {
            if (decode) {
                for (const Lengths &lengths : decode_lengths) expect_even_shares(b, h, lengths);
            } else {
                for (const Lengths &lengths : prefill_lengths) expect_even_shares(b, h, lengths);
            }
        }
    }
}

}  // namespace
