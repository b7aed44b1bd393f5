// Lengths, prefix sums, page ids and offsets: each wrong value is refused by name before anything is written, and
// values that change while they are read never lead outside.
#include <sys/mman.h>

#include <thread>

#include "runtime/plan.h"
#include "runtime/tasks.h"
#include "tests/api/ragged.h"

namespace {

using std::to_string;
using ::testing::HasSubstr;

constexpr Storages dense_paged = {HEED_Q_DENSE, HEED_KV_PAGED}, varlen = {HEED_Q_VARLEN, HEED_KV_VARLEN},
                   varlen_paged = {HEED_Q_VARLEN, HEED_KV_PAGED};

class Metadatas : public ApiTest {
protected:
    static void expect_refused(Ragged &run, const std::string &sentence) {
        run.expect_refused(HEED_INVALID_ARGUMENT, sentence);
    }

    // Puts `value` into an array for one call.
    static void expect_refused_with(Ragged &run, std::vector<int32_t> Metadata::*array, size_t at, int32_t value,
                                    const std::string &sentence) {
        int32_t &entry = (run.metadata.*array)[at];
        const int32_t saved = entry;
        entry = value;
        expect_refused(run, sentence);
        entry = saved;
    }
};

const Lengths lengths = {{3, 2, 5}, {7, 12, 4}};

TEST_F(Metadatas, PrefixSums) {
    const struct {
        const char *name, *longest;
        std::vector<int32_t> Metadata::*array;
        const std::vector<int32_t> &segments;
        int32_t most;
    } cases[] = {{"cu_seqlens_q", "max_q_len", &Metadata::cu_seqlens_q, lengths.q, 5},
                 {"cu_seqlens_kv", "max_kv_len", &Metadata::cu_seqlens_kv, lengths.kv, 13}};
    Ragged run(ragged_problem(varlen, lengths), lengths);
    for (const auto &c : cases) {
        const std::string name = c.name;
        const int32_t first = c.segments[0], second = first + c.segments[1], total = second + c.segments[2];
        for (int32_t value : {1, -1, int32_min, int32_max}) {
            expect_refused_with(run, c.array, 0, value, name + "[0] is " + to_string(value) + "; it must be 0");
        }
        for (int32_t value : {first - 1, -1, int32_min, int32_max, first + c.most + 1}) {  // decreasing, too long
            expect_refused_with(run, c.array, 2, value,
                                name + "[2] is " + to_string(value) + " after " + to_string(first) +
                                    "; it must grow by 0..");
            EXPECT_THAT(heed_last_error(), HasSubstr(c.longest + std::string(" is ") + to_string(c.most)));
        }
        expect_refused_with(run, c.array, 3, total - 1,
                            name + "[3] is " + to_string(total - 1) + "; it must be " + to_string(total));
        expect_refused_with(run, c.array, 3, total + 1, name + "[3] is " + to_string(total + 1) + " after ");
    }
    run.args.cu_seqlens_q = nullptr;
    expect_refused(run, "cu_seqlens_q is NULL");
    run.args.cu_seqlens_q = run.metadata.cu_seqlens_q.data();
    run.args.cu_seqlens_kv = nullptr;
    expect_refused(run, "cu_seqlens_kv is NULL");
    run.args.cu_seqlens_kv = run.metadata.cu_seqlens_kv.data();
    EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
}

// Sums whose differences are legal only in arithmetic that wraps.
TEST_F(Metadatas, PrefixSumsDoNotWrap) {
    Ragged run(ragged_problem(varlen, lengths), lengths);
    run.metadata.cu_seqlens_q = {0, int32_max, int32_min, 10};
    run.metadata.attach(&run.args);
    expect_refused(run, "cu_seqlens_q[1] is 2147483647 after 0");
}

TEST_F(Metadatas, KvLens) {
    for (const Storages &storages : legal_storages) {
        if (storages.kv == HEED_KV_VARLEN) continue;
        const Lengths even = {{5, 5, 5}, lengths.kv};
        const Lengths &its = storages.q == HEED_Q_DENSE ? even : lengths;
        Ragged run(ragged_problem(storages, its), its);
        for (int32_t value : {-1, 14, int32_min, int32_max}) {
            for (size_t at : {0, 2}) {
                expect_refused_with(run, &Metadata::kv_lens, at, value,
                                    "kv_lens[" + to_string(at) + "] is " + to_string(value) +
                                        "; it must be 0..13, the plan's max_kv_len");
            }
        }
        run.args.kv_lens = nullptr;
        expect_refused(run, "kv_lens is NULL");
        run.args.kv_lens = run.metadata.kv_lens.data();
        EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
    }
}

TEST_F(Metadatas, KvLensBeyondTheirPages) {
    heed_problem problem = ragged_problem(dense_paged, {{5, 5}, {12, 8}});
    problem.max_kv_len = 100;
    problem.max_pages_per_seq = 3;
    Ragged run(problem, {{5, 5}, {12, 8}});
    for (int32_t value : {13, 100}) {
        expect_refused_with(run, &Metadata::kv_lens, 1, value,
                            "kv_lens[1] is " + to_string(value) + "; max_pages_per_seq 3 pages of 4 tokens hold less");
    }
    EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
}

TEST_F(Metadatas, PageIds) {
    const Lengths even = {{5, 5, 5}, lengths.kv};
    for (const Storages &storages : {dense_paged, varlen_paged}) {
        const Lengths &its = storages.q == HEED_Q_DENSE ? even : lengths;
        Ragged run(ragged_problem(storages, its), its);
        const int32_t num_pages = run.problem.num_pages, columns = run.problem.max_pages_per_seq;
        for (int32_t value : {-1, num_pages, num_pages + 1, int32_min, int32_max}) {
            for (int32_t b = 0; b < 3; b++) {
                for (int32_t i : {0, pages_of(its.kv[static_cast<size_t>(b)]) - 1}) {
                    expect_refused_with(run, &Metadata::page_table, static_cast<size_t>(b * columns + i), value,
                                        "page_table[" + to_string(b) + "][" + to_string(i) + "] is " +
                                            to_string(value) + "; it must be 0 or more, below num_pages, " +
                                            to_string(num_pages));
                }
            }
        }
        run.args.page_table = nullptr;
        expect_refused(run, "page_table is NULL");
        run.args.page_table = run.metadata.page_table.data();

        ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
        const std::vector<float> expected = run.tensors.out;
        for (int32_t garbage : {-1, num_pages, int32_min, int32_max, 0}) {
            for (int32_t b = 0; b < 3; b++) {
                for (int32_t i = pages_of(its.kv[static_cast<size_t>(b)]); i < columns; i++) {
                    run.metadata.page_table[static_cast<size_t>(b * columns + i)] = garbage;
                }
            }
            ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
            EXPECT_TRUE(same_bits(run.tensors.out, expected));
        }
    }
}

// Room for queries of which no sequence has any: lengths are checked, no kernel is called.
TEST_F(Metadatas, NoSequenceHasQueries) {
    const Lengths none = {{0, 0}, {7, 4}};
    heed_problem problem = ragged_problem(varlen_paged, none);
    problem.max_q_len = 4;
    Ragged run(problem, none);
    const int64_t calls = stub::num_calls;
    EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
    EXPECT_EQ(stub::num_calls, calls);
    expect_refused_with(run, &Metadata::kv_lens, 1, 9, "kv_lens[1] is 9");
}

// One page may be read by many.
TEST_F(Metadatas, SharedPages) {
    Ragged run(ragged_problem(varlen_paged, lengths), lengths);
    std::fill(run.metadata.page_table.begin(), run.metadata.page_table.end(), 1);
    EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
}

// Any offset is a position, with ALiBi too.
TEST_F(Metadatas, Offsets) {
    for (const bool has_alibi : {false, true}) {
        heed_problem problem = ragged_problem(varlen_paged, lengths);
        problem.position = HEED_EXPLICIT;
        problem.causal = true;
        problem.has_alibi = has_alibi;
        Ragged run(problem, lengths);
        run.metadata.q_offsets = {int32_min, int32_max, 0};
        run.metadata.attach(&run.args);
        const int32_t *const offsets = run.args.q_offsets;
        run.args.q_offsets = nullptr;
        expect_refused(run, "q_offsets is NULL");
        run.args.q_offsets = offsets;
        EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
    }
}

// Memory that nothing ever touches but the few values that this test reads and writes.
class Reserved {
public:
    explicit Reserved(size_t bytes)
        : bytes_(bytes),
          data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
    ~Reserved() { munmap(data_, bytes_); }
    Reserved(const Reserved &) = delete;
    Reserved &operator=(const Reserved &) = delete;
    void *data() const { return data_; }

private:
    const size_t bytes_;
    void *const data_;
};

// A long cache with ALiBi needs no offset of the caller's: nothing is refused in the caller's name.
TEST_F(Metadatas, BottomRightWithAlibiTakesAnyLength) {
    constexpr int32_t kv_len = (1 << 30) + 2;
    heed_problem problem = make_problem(1, 1, kv_len, 1, 1, 1, 1);
    problem.position = HEED_BOTTOM_RIGHT;
    problem.has_alibi = true;
    const PlanPtr plan = make_plan(problem);
    std::vector<int32_t> line(heed::num_task_fields);
    heed_args args;
    heed_args_init(&args);
    heed::Workload work;
    ASSERT_EQ(heed::resolve_tasks(plan->problem, plan->views, *plan->kernel, args, {line.data()}, &work), HEED_OK)
        << heed_last_error();
    EXPECT_EQ(line[heed::task_position_offset], kv_len - 1);
}

}  // namespace
