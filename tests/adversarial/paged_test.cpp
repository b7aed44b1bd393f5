// Cases 44 to 51: page tables, lengths and prefix sums that are wrong, pages that are shared or change.
#include <atomic>
#include <thread>

#include "tests/adversarial/adversarial.h"

namespace heed_test {
namespace {

constexpr int32_t int32_min = std::numeric_limits<int32_t>::min(), int32_max = std::numeric_limits<int32_t>::max();

class Paged : public Adversarial {
protected:
    Attention attention() const {
        Attention a = causal(2, 100);
        a.kv_lens = {100, 33};
        return a;
    }
    CallOptions pages(int32_t size = 16) const { return options().with_pages(size); }
};

// A call whose metadata tests may falsify, one value at a time.
class FalsifiedCall {
public:
    FalsifiedCall(const Attention &a, const CallOptions &options) : call_(a, options) {
        EXPECT_EQ(call_.prepare(), HEED_OK) << heed_last_error();
    }

    heed_args &args() { return call_.args; }

    // With values[at] = value the call is refused and writes nothing.
    void expect_refused(const int32_t *heed_args::*field, int64_t size, int64_t at, int32_t value) {
        const int32_t *const given = call_.args.*field;
        if (given == nullptr) return;  // not prepared, which was reported
        std::vector<int32_t> values(given, given + size);
        values[static_cast<size_t>(at)] = value;
        call_.args.*field = values.data();
        EXPECT_EQ(call_.execute(), HEED_INVALID_ARGUMENT) << "[" << at << "] = " << value;
        EXPECT_TRUE(call_.outputs_untouched()) << "[" << at << "] = " << value;
        call_.args.*field = given;
    }

    bool is_refused() { return call_.execute() == HEED_INVALID_ARGUMENT && call_.outputs_untouched(); }
    void expect_fine() { EXPECT_EQ(call_.execute(), HEED_OK) << heed_last_error(); }

private:
    Call call_;
};

TEST_P(Paged, Case44_PageIdsOutOfRange) {
    const Attention a = attention();
    FalsifiedCall call(a, pages());
    const Storage storage = lay_out(a, pages());
    const auto num_pages = static_cast<int32_t>(storage.kv.outer);
    const int64_t columns = storage.max_pages_per_seq;
    for (const int64_t entry : {int64_t{0}, int64_t{3}, int64_t{6}, columns, columns + 2}) {
        for (const int32_t id : {-1, num_pages, num_pages + 1, int32_min, int32_max}) {
            call.expect_refused(&heed_args::page_table, 2 * columns, entry, id);
        }
    }
    call.expect_fine();
}

TEST_P(Paged, Case45_EntriesBehindTheLengthAreIgnored) {
    const Attention a = attention();
    const Result result = expect_correct(a, pages());
    const Storage storage = lay_out(a, pages());
    const auto columns = static_cast<size_t>(storage.max_pages_per_seq);
    for (const int32_t garbage : {-1, 0, int32_min, static_cast<int32_t>(storage.kv.outer)}) {
        std::vector<int32_t> table = storage.page_table;
        std::replace(table.begin(), table.end(), garbage_page, garbage);
        EXPECT_EQ(table[columns + 3], garbage);
        Call call(a, pages());
        ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        call.args.page_table = table.data();
        ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
        expect_same_bits({HEED_OK, call.out(), call.lse()}, result);
    }
}

TEST_P(Paged, Case46_LengthsUpToTheCapacity) {
    Attention a = causal(2, 96);
    a.kv_lens = {96, 17};
    CallOptions full = pages();
    full.spare_columns = 0;
    expect_correct(a, full);
    FalsifiedCall exact(a, full);
    for (const int32_t kv_len : {97, 1000, int32_max}) exact.expect_refused(&heed_args::kv_lens, 2, 0, kv_len);
    exact.expect_fine();
    // A longest length that the table cannot hold: the plan or the call says no.
    Call call(a, full);
    call.problem.max_kv_len = 97;
    heed_status status = call.prepare();
    if (status == HEED_OK) {
        const int32_t kv_lens[] = {97, 17};
        call.args.kv_lens = kv_lens;
        status = call.execute();
        EXPECT_TRUE(call.outputs_untouched());
    }
    EXPECT_EQ(status, HEED_INVALID_ARGUMENT);
}

TEST_P(Paged, Case47_SharedPagesEqualTheGather) {
    Attention a = attention();
    for (int32_t j = 0; j < 16; j++) {  // page 0 again as page 2, and as page 1 of the other sequence
        std::copy_n(a.k_row(0, j, 0), 128, a.k_row(0, j + 32, 0));
        std::copy_n(a.v_row(0, j, 0), 128, a.v_row(0, j + 32, 0));
        std::copy_n(a.k_row(0, j, 0), 128, a.k_row(1, j + 16, 0));
        std::copy_n(a.v_row(0, j, 0), 128, a.v_row(1, j + 16, 0));
    }
    CallOptions shared = pages();
    shared.share_pages = true;
    const Storage storage = lay_out(a, shared);
    EXPECT_EQ(storage.page_table[0], storage.page_table[2]);
    EXPECT_EQ(storage.page_table[0], storage.page_table[static_cast<size_t>(storage.max_pages_per_seq) + 1]);
    expect_same_bits(expect_correct(a, shared), expect_runs(a, contiguous()));
}

TEST_P(Paged, Case50_NegativeLengths) {
    const Attention a = attention();
    FalsifiedCall call(a, pages());
    for (const int32_t kv_len : {-1, int32_min}) {
        call.expect_refused(&heed_args::kv_lens, 2, 0, kv_len);
        call.expect_refused(&heed_args::kv_lens, 2, 1, kv_len);
    }
    FalsifiedCall dense(a, contiguous());
    dense.expect_refused(&heed_args::kv_lens, 2, 1, -1);
    dense.expect_refused(&heed_args::kv_lens, 2, 1, 101);
    dense.expect_fine();
}

class ChangingTable : public Paged {};

// Another thread writes anything into the table: results may be wrong, but no access may leave the pool, which is
// between guard pages.
TEST_P(ChangingTable, Case51_TableChangesDuringTheCall) {
    const Attention a = attention();
    Call call(a, pages());
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    std::vector<int32_t> table = lay_out(a, pages()).page_table;
    call.args.page_table = table.data();
    std::atomic<bool> done{false};
    std::thread writer([&] {
        Rng rng(51);
        while (!done) {
            const bool valid = rng.chance(0.9);
            const int32_t id = valid ? rng.below(call.problem.num_pages) : static_cast<int32_t>(rng.bits());
            const auto at = static_cast<size_t>(rng.below(static_cast<int32_t>(table.size())));
            __atomic_store_n(&table[at], id, __ATOMIC_RELAXED);
        }
    });
    int32_t ran = 0;
    for (int32_t n = 0; n < 10000; n++) {
        const heed_status status = call.execute();
        ran += status == HEED_OK;
        if (status != HEED_OK && status != HEED_INVALID_ARGUMENT) ADD_FAILURE() << heed_last_error();
    }
    done = true;
    writer.join();
    EXPECT_TRUE(call.canaries_intact());
    std::printf("[   INFO   ] %d of 10000 calls passed the checks\n", ran);
}

std::vector<TableKernel> paged_kernels() {
    return only(kernels_of_64(), [](const TableKernel &kernel) { return kernel.paged(); });
}

// The table is read by the runtime, the same for all element types.
std::vector<TableKernel> f32_paged_kernels() {
    return only(paged_kernels(),
                [](const TableKernel &kernel) { return kernel.info.dtype == HEED_F32 && !kernel.any_head_dim(); });
}

INSTANTIATE_TEST_SUITE_P(Kernels, Paged, testing::ValuesIn(paged_kernels()), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Paged);
INSTANTIATE_TEST_SUITE_P(Kernels, ChangingTable, testing::ValuesIn(f32_paged_kernels()), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ChangingTable);

class PageSizes : public KernelTest {};

TEST_P(PageSizes, Case48_AroundThePage) {
    Shape shape = kernel().shape(64, 64);
    for (const int32_t page_size : {1, 16, 32, 64, 256}) {
        for (const int32_t kv_len : {page_size - 1, page_size, page_size + 1, 3 * page_size}) {
            if (kv_len == 0) continue;
            shape.q_len = 3;
            shape.num_heads = 2;
            shape.kv_len = kv_len;
            Attention a = kernel().attention(shape, Data::normal, 48);
            a.causal = true;
            a.position = HEED_BOTTOM_RIGHT;
            // One key proves little.
            const Trust trust = {true, kv_len > 3};
            expect_same_bits(expect_correct(a, options().with_pages(page_size), trust),
                             expect_runs(a, options().with_storage(HEED_Q_DENSE, HEED_KV_CONTIGUOUS)));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PageSizes,
                         testing::ValuesIn(only(supported_kernels(),
                                                [](const TableKernel &kernel) {
                                                    const int32_t dim = kernel.info.head_dim;
                                                    return kernel.paged() && (dim == 0 || dim == 64 || dim == 256);
                                                })),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PageSizes);

class PrefixSums : public Adversarial {};

TEST_P(PrefixSums, Case49_PrefixSumsThatLie) {
    Attention a = causal(6, 40);
    a.q_lens = {4, 6};
    a.kv_lens = {40, 25};
    FalsifiedCall call(a, options().with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN));
    const auto refused = [&call](const int32_t *heed_args::*field, int64_t at, std::initializer_list<int32_t> values) {
        for (const int32_t value : values) call.expect_refused(field, 3, at, value);
    };
    refused(&heed_args::cu_seqlens_q, 0, {1, -1, int32_min});      // begin at 0
    refused(&heed_args::cu_seqlens_q, 1, {-1, 11, int32_max});     // never fall
    refused(&heed_args::cu_seqlens_q, 1, {3, 7});                  // segments of 7: longer than max_q_len
    refused(&heed_args::cu_seqlens_q, 2, {9, 11, int32_max, -1});  // end at total_q
    refused(&heed_args::cu_seqlens_kv, 0, {1, -1, int32_min});
    refused(&heed_args::cu_seqlens_kv, 1, {-1, 66, int32_max, int32_min});
    refused(&heed_args::cu_seqlens_kv, 1, {41, 24});
    refused(&heed_args::cu_seqlens_kv, 2, {64, 66, int32_max, -1});
    const heed_args given = call.args();
    for (const int32_t *heed_args::*const field : {&heed_args::cu_seqlens_q, &heed_args::cu_seqlens_kv}) {
        call.args().*field = nullptr;
        EXPECT_TRUE(call.is_refused());
        call.args() = given;
    }
    call.expect_fine();
}

INSTANTIATE_TEST_SUITE_P(Kernels, PrefixSums, testing::ValuesIn(kernels_of_64()), kernel_test_name);

}  // namespace
}  // namespace heed_test
