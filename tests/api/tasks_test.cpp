// The task table that kernels get: which rows each task has, where its sequence is, what its rows see.
#include <numeric>
#include <random>

#include "runtime/plan.h"
#include "runtime/tasks.h"
#include "tests/api/ragged.h"

namespace {

using stub::Task;
using ::testing::ElementsAre;

class Tasks : public ApiTest {
protected:
    // The table of one call, on the named kernel or the plan's own.
    static std::vector<Task> table(const heed_problem &problem, const Lengths &lengths, const char *kernel = "") {
        setenv("HEED_FORCE_KERNEL", kernel, 1);
        Ragged run(problem, lengths);
        EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
        EXPECT_TRUE(run.workspace.surroundings_intact());
        EXPECT_THAT(stub::last_call.tasks.strides, ElementsAre(1, heed::num_task_fields));
        EXPECT_EQ(stub::last_call.tasks.extents.at(0), heed::num_task_fields);
        return stub::last_call.task_table;
    }
};

constexpr Storages dense = {HEED_Q_DENSE, HEED_KV_CONTIGUOUS}, dense_paged = {HEED_Q_DENSE, HEED_KV_PAGED},
                   varlen = {HEED_Q_VARLEN, HEED_KV_VARLEN}, varlen_contiguous = {HEED_Q_VARLEN, HEED_KV_CONTIGUOUS},
                   varlen_paged = {HEED_Q_VARLEN, HEED_KV_PAGED};

// Columns: sequence, head, kv_head, first_row; q_len, q_batch, first_q; kv_len, kv_batch, first_key; visible_begin,
// visible_end, position_offset; first_block, swept; num_blocks, head_blocks.

// Few tasks: those of the last rows, which see most keys, come first in each sequence.
TEST_F(Tasks, DensePrefill) {
    const Lengths lengths = {{10, 10}, {20, 3}};
    heed_problem problem = ragged_problem(dense, lengths, 2, 1);
    problem.position = HEED_BOTTOM_RIGHT;
    problem.causal = true;
    EXPECT_THAT(table(problem, lengths),
                ElementsAre(Task{0, 0, 0, 8, 10, 0, 0, 20, 0, 0, int32_min, 11, 10, 0, 0, 1, 1},  //
                            Task{0, 1, 0, 8, 10, 0, 0, 20, 0, 0, int32_min, 11, 10, 0, 0, 1, 1},
                            Task{0, 0, 0, 0, 10, 0, 0, 20, 0, 0, int32_min, 11, 10, 0, 0, 1, 1},
                            Task{0, 1, 0, 0, 10, 0, 0, 20, 0, 0, int32_min, 11, 10, 0, 0, 1, 1},
                            Task{1, 0, 0, 8, 10, 1, 0, 3, 1, 0, int32_min, -6, -7, 0, 0, 1, 1},
                            Task{1, 1, 0, 8, 10, 1, 0, 3, 1, 0, int32_min, -6, -7, 0, 0, 1, 1},
                            Task{1, 0, 0, 0, 10, 1, 0, 3, 1, 0, int32_min, -6, -7, 0, 0, 1, 1},
                            Task{1, 1, 0, 0, 10, 1, 0, 3, 1, 0, int32_min, -6, -7, 0, 0, 1, 1}));
}

TEST_F(Tasks, WithoutLengthsEverySequenceIsFull) {
    Attempt run(make_problem(2, 8, 16, 1, 1));
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    EXPECT_THAT(stub::last_call.task_table,
                ElementsAre(Task{0, 0, 0, 0, 8, 0, 0, 16, 0, 0, int32_min, 16, 0, 0, 0, 1, 1},
                            Task{1, 0, 0, 0, 8, 1, 0, 16, 1, 0, int32_min, 16, 0, 0, 0, 1, 1}));
}

// A stride of 0 along the batch: kernels see one index there, and no task names another.
TEST_F(Tasks, SharedKeysHaveOneBatchIndex) {
    heed_problem problem = make_problem(2, 8, 16, 1, 1);
    problem.k_layout = problem.v_layout = {{0, 64, 64, 1}};
    Attempt run(problem);
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    EXPECT_EQ(stub::last_call.k.extents[3], 1);
    EXPECT_THAT(stub::last_call.task_table,
                ElementsAre(Task{0, 0, 0, 0, 8, 0, 0, 16, 0, 0, int32_min, 16, 0, 0, 0, 1, 1},
                            Task{1, 0, 0, 0, 8, 1, 0, 16, 0, 0, int32_min, 16, 0, 0, 0, 1, 1}));
}

TEST_F(Tasks, DensePaged) {
    const Lengths lengths = {{5, 5}, {9, 0}};
    heed_problem problem = ragged_problem(dense_paged, lengths, 1, 1);
    EXPECT_THAT(table(problem, lengths), ElementsAre(Task{0, 0, 0, 0, 5, 0, 0, 9, 0, 0, int32_min, 9, 0, 0, 0, 1, 1},
                                                     Task{1, 0, 0, 0, 5, 1, 0, 0, 0, 0, int32_min, 0, 0, 0, 0, 1, 1}));
}

// The sequence without queries has no task; the window and the position follow each sequence's own lengths.
TEST_F(Tasks, VarlenPrefill) {
    const Lengths lengths = {{9, 0, 1}, {5, 4, 0}};
    heed_problem problem = ragged_problem(varlen, lengths, 1, 1);
    problem.position = HEED_BOTTOM_RIGHT;
    problem.window_left = 2;
    problem.window_right = 1;
    EXPECT_THAT(table(problem, lengths), ElementsAre(Task{0, 0, 0, 8, 9, 0, 0, 5, 0, 0, -6, -2, -4, 0, 0, 1, 1},
                                                     Task{0, 0, 0, 0, 9, 0, 0, 5, 0, 0, -6, -2, -4, 0, 0, 1, 1},
                                                     Task{2, 0, 0, 0, 1, 0, 9, 0, 0, 9, -3, 0, -1, 0, 0, 1, 1}));
}

TEST_F(Tasks, VarlenQueriesOnACacheOfEachStorage) {
    const Lengths lengths = {{2, 6}, {7, 12}};
    heed_problem problem = ragged_problem(varlen_contiguous, lengths, 1, 1);
    problem.causal = true;
    EXPECT_THAT(table(problem, lengths), ElementsAre(Task{0, 0, 0, 0, 2, 0, 0, 7, 0, 0, int32_min, 1, 0, 0, 0, 1, 1},
                                                     Task{1, 0, 0, 0, 6, 0, 2, 12, 1, 0, int32_min, 1, 0, 0, 0, 1, 1}));
    problem = ragged_problem(varlen_paged, lengths, 1, 1);
    problem.causal = true;
    EXPECT_THAT(table(problem, lengths), ElementsAre(Task{0, 0, 0, 0, 2, 0, 0, 7, 0, 0, int32_min, 1, 0, 0, 0, 1, 1},
                                                     Task{1, 0, 0, 0, 6, 0, 2, 12, 0, 0, int32_min, 1, 0, 0, 0, 1, 1}));
}

// Rows of decode tasks are the heads of a group, position after position; here 3 of them in blocks of 4.
TEST_F(Tasks, DecodeBlocksHoldTheHeadsOfAGroup) {
    const Lengths lengths = {{2, 1}, {7, 12}};
    heed_problem problem = ragged_problem(varlen_paged, lengths, 6, 2);
    problem.position = HEED_BOTTOM_RIGHT;
    problem.causal = true;
    EXPECT_THAT(table(problem, lengths, stub::decode_paged),
                ElementsAre(Task{0, 0, 0, 0, 2, 0, 0, 7, 0, 0, int32_min, 6, 5, 0, 0, 1, 1},  //
                            Task{0, 0, 0, 4, 2, 0, 0, 7, 0, 0, int32_min, 6, 5, 0, 0, 1, 1},
                            Task{0, 3, 1, 0, 2, 0, 0, 7, 0, 0, int32_min, 6, 5, 0, 0, 1, 1},
                            Task{0, 3, 1, 4, 2, 0, 0, 7, 0, 0, int32_min, 6, 5, 0, 0, 1, 1},
                            Task{1, 0, 0, 0, 1, 0, 2, 12, 0, 0, int32_min, 12, 11, 0, 0, 1, 1},
                            Task{1, 3, 1, 0, 1, 0, 2, 12, 0, 0, int32_min, 12, 11, 0, 0, 1, 1}));
}

TEST_F(Tasks, DecodeRowsOfOneRow) {
    const Lengths lengths = {{1, 1}, {7, 12}};
    heed_problem problem = ragged_problem(varlen, lengths, 4, 2);
    EXPECT_THAT(table(problem, lengths, stub::decode_any),
                ElementsAre(Task{0, 0, 0, 0, 1, 0, 0, 7, 0, 0, int32_min, 7, 0, 0, 0, 1, 1},  //
                            Task{0, 0, 0, 1, 1, 0, 0, 7, 0, 0, int32_min, 7, 0, 0, 0, 1, 1},
                            Task{0, 2, 1, 0, 1, 0, 0, 7, 0, 0, int32_min, 7, 0, 0, 0, 1, 1},
                            Task{0, 2, 1, 1, 1, 0, 0, 7, 0, 0, int32_min, 7, 0, 0, 0, 1, 1},
                            Task{1, 0, 0, 0, 1, 0, 1, 12, 0, 7, int32_min, 12, 0, 0, 0, 1, 1},
                            Task{1, 0, 0, 1, 1, 0, 1, 12, 0, 7, int32_min, 12, 0, 0, 0, 1, 1},
                            Task{1, 2, 1, 0, 1, 0, 1, 12, 0, 7, int32_min, 12, 0, 0, 0, 1, 1},
                            Task{1, 2, 1, 1, 1, 0, 1, 12, 0, 7, int32_min, 12, 0, 0, 0, 1, 1}));
}

// What the contract says that query i of a sequence sees, without lengths of the cache.
bool in_range(const heed_problem &p, int32_t q_len, int32_t kv_len, int32_t q_offset, int64_t i, int64_t j) {
    int64_t position = i;
    if (p.position == HEED_BOTTOM_RIGHT) position = i + kv_len - q_len;
    if (p.position == HEED_EXPLICIT) position = i + q_offset;
    return j < kv_len && (!p.causal || j <= position) && (p.window_left < 0 || j >= position - p.window_left) &&
           (p.window_right < 0 || j <= position + p.window_right);
}

class RandomLengths : public Tasks {
protected:
    int32_t below(int32_t n) { return std::uniform_int_distribution<int32_t>(0, n - 1)(random_); }

    Lengths make_lengths(bool dense_queries) {
        Lengths lengths;
        const int32_t batch = 1 + below(5), q_limit = 1 + below(40);
        for (int32_t b = 0; b < batch; b++) {
            lengths.q.push_back(below(q_limit));
            lengths.kv.push_back(below(25));
        }
        lengths.q[0]++;  // not all are empty
        if (dense_queries) std::fill(lengths.q.begin(), lengths.q.end(), lengths.q[0]);
        return lengths;
    }

    heed_problem make(const Storages &storages, const Lengths &lengths) {
        const int32_t num_kv_heads = 1 + below(3);
        heed_problem problem = ragged_problem(storages, lengths, num_kv_heads * (1 + below(5)), num_kv_heads, 1);
        problem.position = static_cast<heed_position>(below(3));
        problem.causal = below(2) == 0;
        problem.window_left = below(6) - 1;
        problem.window_right = below(6) - 1;
        return problem;
    }

    std::mt19937 random_{20240607};
};

// Each row of each head of each sequence is in exactly one task, and that task says what the row sees.
TEST_F(RandomLengths, EveryRowHasOneTask) {
    for (int round = 0; round < 200 && !HasFailure(); round++) {
        const Storages &storages = legal_storages[round % std::size(legal_storages)];
        const Lengths lengths = make_lengths(storages.q == HEED_Q_DENSE);
        const heed_problem problem = make(storages, lengths);
        const bool decode = below(2) == 0;
        setenv("HEED_FORCE_KERNEL", decode ? stub::decode_paged : stub::prefill_paged, 1);
        Ragged run(problem, lengths);
        for (int32_t &offset : run.metadata.q_offsets) offset = below(30) - 15;
        stub::last_call = {};
        ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
        if (stub::last_call.kernel.empty()) {  // no token at all needs no kernel
            EXPECT_EQ(std::accumulate(lengths.kv.begin(), lengths.kv.end(), 0), 0) << "round " << round;
            continue;
        }

        const int32_t group_size = decode ? problem.num_heads / problem.num_kv_heads : 1;
        const int32_t row_block = decode ? stub::decode_paged_row_block : stub::prefill_row_block;
        std::vector<std::vector<int>> counts(lengths.q.size());
        for (size_t b = 0; b < counts.size(); b++) {
            counts[b].resize(static_cast<size_t>(problem.num_heads * lengths.q[b]));
        }
        for (const Task &task : stub::last_call.task_table) {
            const auto b = static_cast<size_t>(task.at(heed::task_sequence));
            const int32_t q_len = lengths.q.at(b), kv_len = lengths.kv.at(b), first = task[heed::task_first_row];
            EXPECT_EQ(task[heed::task_q_len], q_len);
            EXPECT_EQ(task[heed::task_kv_len], kv_len);
            EXPECT_EQ(task[heed::task_kv_head], task[heed::task_head] / (problem.num_heads / problem.num_kv_heads));
            for (int32_t row = first; row < std::min(first + row_block, q_len * group_size); row++) {
                const int32_t i = row / group_size, head = task[heed::task_head] + row % group_size;
                counts[b].at(static_cast<size_t>(head * q_len + i))++;
                for (int32_t j = 0; j < kv_len; j++) {
                    const bool seen = j >= i + task[heed::task_visible_begin] && j < i + task[heed::task_visible_end];
                    EXPECT_EQ(seen, in_range(problem, q_len, kv_len, run.metadata.q_offsets[b], i, j))
                        << "round " << round << ", query " << i << " of " << q_len << ", key " << j << " of " << kv_len;
                }
            }
        }
        for (const std::vector<int> &sequence : counts) EXPECT_THAT(sequence, ::testing::Each(1)) << "round " << round;
    }
}

// A table of max_tasks lines holds any lengths, and what comes after it stays.
TEST_F(RandomLengths, NeverBeyondMaxTasks) {
    constexpr int32_t behind = 0x5a5a5a5a;
    for (int round = 0; round < 1000 && !HasFailure(); round++) {
        const Lengths lengths = make_lengths(false);
        heed_problem problem = make({HEED_Q_VARLEN, HEED_KV_VARLEN}, lengths);
        problem.max_q_len += below(100);
        const char *kernel = round % 2 == 0 ? stub::decode_paged : stub::prefill_paged;
        setenv("HEED_FORCE_KERNEL", kernel, 1);
        const PlanPtr plan = make_plan(problem);
        const int64_t most = heed::max_tasks(problem, *plan->kernel);
        std::vector<int32_t> lines(static_cast<size_t>(most * heed::num_task_fields) + 1, behind);
        heed_args args;
        heed_args_init(&args);
        const Metadata metadata(problem, lengths);
        metadata.attach(&args);
        heed::Workload work;
        ASSERT_EQ(heed::resolve_tasks(plan->problem, plan->views, *plan->kernel, args, {lines.data()}, &work), HEED_OK)
            << heed_last_error();
        EXPECT_LE(work.num_tasks, most);
        EXPECT_EQ(lines.back(), behind);
    }
}

TEST_F(Tasks, MaxTasksIsReached) {
    const Lengths lengths = {{1, 9, 1}, {1, 1, 1}};
    const heed_problem problem = ragged_problem(varlen, lengths, 3, 1);
    const PlanPtr plan = make_plan(problem);
    ASSERT_EQ(plan->kernel->name, stub::prefill_any);
    EXPECT_EQ(heed::max_tasks(problem, *plan->kernel), 3 * 4);
    EXPECT_EQ(table(problem, lengths).size(), 3u * 4);
}

TEST_F(Tasks, TablesBeyondTheKernelsReachAreRefused) {
    heed_problem problem = make_problem(1 << 28, 1, 1, 1, 1, 1, 1);
    make_plan(problem, HEED_UNSUPPORTED);
    EXPECT_THAT(heed_last_error(), ::testing::HasSubstr("blocks of query rows is beyond 2^31-1 elements"));
    problem.batch = 1 << 26;
    EXPECT_TRUE(make_plan(problem));
}

// Runs sequence b of a run alone, dense, and expects the bits that it got among the others.
void expect_same_alone(const Ragged &run, size_t b) {
    heed_problem one = run.problem;
    one.batch = 1;
    one.max_q_len = run.lengths.q[b];
    one.max_kv_len = run.lengths.kv[b];
    one.q_storage = HEED_Q_DENSE;
    one.kv_storage = HEED_KV_CONTIGUOUS;
    one.has_kv_lens = false;
    Attempt alone(one);
    const auto q_row = static_cast<size_t>(one.num_heads * one.head_dim);
    const auto kv_row = static_cast<size_t>(one.num_kv_heads * one.head_dim);
    for (int32_t i = 0; i < one.max_q_len; i++) {
        std::copy_n(&run.tensors.q[run.q_token(b, i) * q_row], q_row, &alone.tensors.q[static_cast<size_t>(i) * q_row]);
    }
    for (int32_t j = 0; j < one.max_kv_len; j++) {
        const size_t from = run.kv_token(b, j) * kv_row, to = static_cast<size_t>(j) * kv_row;
        std::copy_n(&run.tensors.k[from], kv_row, &alone.tensors.k[to]);
        std::copy_n(&run.tensors.v[from], kv_row, &alone.tensors.v[to]);
    }
    alone.args.sink = run.args.sink;
    alone.args.alibi_slopes = run.args.alibi_slopes;
    ASSERT_EQ(alone.execute(), HEED_OK) << heed_last_error();
    for (int32_t i = 0; i < one.max_q_len; i++) {
        const size_t from = run.q_token(b, i) * q_row, to = static_cast<size_t>(i) * q_row;
        EXPECT_EQ(std::memcmp(&run.tensors.out[from], &alone.tensors.out[to], q_row * sizeof(float)), 0);
        for (int32_t h = 0; h < one.num_heads; h++) {
            EXPECT_EQ(run.lse_at(b, h, i), alone.tensors.lse[static_cast<size_t>(h * one.max_q_len + i)]);
        }
    }
}

TEST_F(Tasks, StoragesAgree) {
    const Lengths all = {{3, 0, 9, 1}, {5, 4, 13, 0}}, even = {{6, 6, 6}, {5, 0, 13}};
    for (const Storages &storages : legal_storages) {
        const Lengths &lengths = storages.q == HEED_Q_DENSE ? even : all;
        heed_problem problem = ragged_problem(storages, lengths);
        problem.position = HEED_BOTTOM_RIGHT;
        problem.causal = problem.has_sink = problem.has_alibi = true;
        problem.window_left = 7;
        problem.softcap = 2;
        for (const char *kernel : {stub::prefill_paged, stub::decode_paged}) {
            setenv("HEED_FORCE_KERNEL", kernel, 1);
            Ragged run(problem, lengths);
            ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
            for (size_t b = 0; b < lengths.q.size(); b++) expect_same_alone(run, b);
        }
    }
}

// Heads 0..3 of 2 of keys and values and 3 queries: 6 rows each, blocks of 4 rows.
TEST_F(Tasks, DecodeTasksHaveBlocksOfSeveralHeads) {
    const heed_problem problem = make_problem(1, 3, 16, 4, 2);
    heed_problem p;
    heed::ProblemViews views;
    ASSERT_EQ(heed::check_problem(&problem, &p, &views), HEED_OK) << heed_last_error();
    heed::Kernel kernel = {};
    kernel.phase = heed::Phase::decode;
    kernel.row_block = 4;
    heed_args args;
    heed_args_init(&args);
    const auto lines = [&](const heed::TaskShape &shape) {
        std::vector<Task> tasks(static_cast<size_t>(heed::max_tasks(p, kernel, shape)));
        heed::Workload work;
        EXPECT_EQ(heed::resolve_tasks(p, views, kernel, args, {tasks.data()->data()}, &work, shape), HEED_OK);
        EXPECT_EQ(work.num_tasks, static_cast<int32_t>(tasks.size()));
        return tasks;
    };
    EXPECT_THAT(lines({2, 2}), ElementsAre(Task{0, 0, 0, 0, 3, 0, 0, 16, 0, 0, int32_min, 16, 0, 0, 0, 4, 2}));
    EXPECT_THAT(lines({1, 2}), ElementsAre(Task{0, 0, 0, 0, 3, 0, 0, 16, 0, 0, int32_min, 16, 0, 0, 0, 2, 2},
                                           Task{0, 2, 1, 0, 3, 0, 0, 16, 0, 0, int32_min, 16, 0, 0, 0, 2, 2}));
    EXPECT_THAT(lines({2, 1}), ElementsAre(Task{0, 0, 0, 0, 3, 0, 0, 16, 0, 0, int32_min, 16, 0, 0, 0, 2, 1},
                                           Task{0, 0, 0, 4, 3, 0, 0, 16, 0, 0, int32_min, 16, 0, 0, 0, 2, 1}));
}

}  // namespace
