// Cases 40 to 43: tensors, masks and dropout masks beyond 2^31 elements, sizes that overflow.
#include "adversarial.h"
#include "philox.h"

namespace heed_test {
namespace {

class FarRows : public Adversarial {
protected:
    // Rows of 64 elements behind the given offset.
    static void store_row(const ReservedBuffer &buffer, int64_t at, heed_dtype dtype, const float *row) {
        for (int64_t d = 0; d < 64; d++) store(buffer.data(), at + d, dtype, row[d]);
    }
    static Plan plan_of(const Row &row, const heed_problem &problem, heed_status *status) {
        const ForcedKernel forced(row.name);
        heed_plan *created = nullptr;
        *status = heed_plan_create(&problem, &created);
        return Plan(created);
    }
};

class FarPages : public FarRows {};

// Rows of k and v so far apart that their offsets pass 2^31: right or refused, never another row.
TEST_P(FarRows, Case40_StridesBeyond32Bits) {
    Attention a = row().attention({1, 2, 1, 2, 5, 64, 64}, Data::normal, 40);
    const Result compact = expect_correct(a, contiguous());
    const int64_t rows = a.kv_len - 1, half = int64_t{1} << 31;
    int32_t right = 0;
    for (const int64_t last : {half / 2, half - 64 * rows, half - 1, half, half + 64, 2 * half}) {
        const int64_t stride = last / rows, span = rows * stride + 64;
        const ReservedBuffer k(element_bytes(a.dtype) * span), v(element_bytes(a.dtype) * span);
        for (int64_t j = 0; j < a.kv_len; j++) {
            store_row(k, j * stride, a.dtype, a.k_row(0, j, 0));
            store_row(v, j * stride, a.dtype, a.v_row(0, j, 0));
        }
        Call plain(a, contiguous());
        ASSERT_EQ(plain.prepare(), HEED_OK) << heed_last_error();
        heed_problem far = plain.problem;
        far.k_layout = far.v_layout = {{0, stride, 64, 1}};
        heed_status status = HEED_OK;
        const Plan plan = plan_of(row(), far, &status);
        if (status != HEED_OK) {
            EXPECT_EQ(status, HEED_UNSUPPORTED) << heed_last_error();
            continue;
        }
        plain.args.k = {k.data(), span, a.dtype};
        plain.args.v = {v.data(), span, a.dtype};
        ASSERT_LE(heed_plan_workspace_bytes(plan.get()), plain.args.workspace_bytes);
        ASSERT_EQ(heed_execute(plan.get(), &plain.args), HEED_OK) << heed_last_error();
        expect_same_bits(plain.out(), compact.out, "out");
        right++;
    }
    EXPECT_GT(right, 0);  // up to 2^30 at least
}

// A cache that all sequences share, of stride 0 along the batch: the product of its extents passes 2^31.
TEST_P(FarRows, Case40_OneCacheOfManySequences) {
    constexpr int32_t batch = 70, capacity = 500000;
    constexpr int64_t span = int64_t{capacity} * 64;
    Attention a = row().attention({batch, 1, 1, 1, 5, 64, 64}, Data::normal, 44);
    a.kv_lens.assign(batch, a.kv_len);
    for (int32_t b = 1; b < batch; b++) {
        std::copy_n(a.k.begin(), a.kv_len * 64, a.k.begin() + int64_t{b} * a.kv_len * 64);
        std::copy_n(a.v.begin(), a.kv_len * 64, a.v.begin() + int64_t{b} * a.kv_len * 64);
    }
    CallOptions one_split = contiguous();
    one_split.num_splits = 1;
    const Result compact = expect_correct(a, one_split);
    const ReservedBuffer k(element_bytes(a.dtype) * span), v(element_bytes(a.dtype) * span);
    for (int64_t j = 0; j < a.kv_len; j++) {
        store_row(k, j * 64, a.dtype, a.k_row(0, j, 0));
        store_row(v, j * 64, a.dtype, a.v_row(0, j, 0));
    }
    Call call(a, one_split);
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    heed_problem shared = call.problem;
    shared.max_kv_len = capacity;
    shared.k_layout = shared.v_layout = {{0, 64, 64, 1}};
    heed_status status = HEED_OK;
    const Plan plan = plan_of(row(), shared, &status);
    ASSERT_EQ(status, HEED_OK) << heed_last_error();
    call.args.k = {k.data(), span, a.dtype};
    call.args.v = {v.data(), span, a.dtype};
    ASSERT_LE(heed_plan_workspace_bytes(plan.get()), call.args.workspace_bytes);
    ASSERT_EQ(heed_execute(plan.get(), &call.args), HEED_OK) << heed_last_error();
    expect_same_bits({HEED_OK, call.out(), call.lse()}, compact);
}

// Tokens of the last sequence behind 2^31 elements of a varlen tensor; the long sequence before it has no queries.
TEST_P(FarRows, Case40_VarlenTokensBeyond32Bits) {
    Attention a = row().attention({2, 2, 1, 2, 5, 64, 64}, Data::normal, 41);
    a.q_lens = {0, 2};
    CallOptions varlen = options().with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN);
    varlen.num_splits = 1;
    const Result compact = expect_correct(a, varlen);
    for (const int64_t first : {int64_t{1} << 20, (int64_t{1} << 25) - 2, int64_t{1} << 25, int64_t{1} << 26}) {
        Call call(a, varlen);
        call.problem.total_kv = static_cast<int32_t>(first) + a.kv_len;
        call.problem.max_kv_len = static_cast<int32_t>(first);
        heed_status status = HEED_OK;
        const Plan plan = plan_of(row(), call.problem, &status);
        if (status != HEED_OK) {
            EXPECT_EQ(status, HEED_UNSUPPORTED) << heed_last_error();
            EXPECT_GE(first * 64, (int64_t{1} << 31) - 128);
            continue;
        }
        const int64_t span = int64_t{call.problem.total_kv} * 64;
        const ReservedBuffer k(element_bytes(a.dtype) * span), v(element_bytes(a.dtype) * span);
        for (int64_t j = 0; j < a.kv_len; j++) {
            store_row(k, (first + j) * 64, a.dtype, a.k_row(1, j, 0));
            store_row(v, (first + j) * 64, a.dtype, a.v_row(1, j, 0));
        }
        Call near(a, varlen);
        ASSERT_EQ(near.prepare(), HEED_OK) << heed_last_error();
        const GuardedBuffer workspace(heed_plan_workspace_bytes(plan.get()), Flush::rear);
        const int32_t cu_seqlens[] = {0, static_cast<int32_t>(first), call.problem.total_kv};
        near.args.cu_seqlens_kv = cu_seqlens;
        near.args.k = {k.data(), span, a.dtype};
        near.args.v = {v.data(), span, a.dtype};
        near.args.workspace = workspace.data();
        near.args.workspace_bytes = workspace.bytes();
        ASSERT_EQ(heed_execute(plan.get(), &near.args), HEED_OK) << heed_last_error();
        expect_same_bits({HEED_OK, near.out(), near.lse()}, compact);
    }
}

// Pages whose offsets in the pool pass 2^31 elements.
TEST_P(FarPages, Case40_PagesBeyond32Bits) {
    const Attention a = row().attention({1, 2, 1, 2, 40, 64, 64}, Data::normal, 42);
    const Result compact = expect_correct(a, options().with_pages(16));
    const int64_t page = 16 * 64, limit = (int64_t{1} << 31) / page;
    for (const int64_t first : {int64_t{5}, limit - 2, limit, 2 * limit - 1}) {
        Call call(a, options().with_pages(16));
        ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        heed_problem far = call.problem;
        far.num_pages = static_cast<int32_t>(first) + 3;
        heed_status status = HEED_OK;
        const Plan plan = plan_of(row(), far, &status);
        if (status != HEED_OK) {
            EXPECT_EQ(status, HEED_UNSUPPORTED) << heed_last_error();
            EXPECT_GT(first + 3, limit);
            continue;
        }
        const int64_t span = far.num_pages * page;
        const ReservedBuffer k(element_bytes(a.dtype) * span), v(element_bytes(a.dtype) * span);
        for (int64_t j = 0; j < a.kv_len; j++) {
            const int64_t at = (first + 2 - j / 16) * page + j % 16 * 64;
            store_row(k, at, a.dtype, a.k_row(0, j, 0));
            store_row(v, at, a.dtype, a.v_row(0, j, 0));
        }
        std::vector<int32_t> table(static_cast<size_t>(far.max_pages_per_seq), garbage_page);
        for (int32_t n = 0; n < 3; n++) table[static_cast<size_t>(n)] = static_cast<int32_t>(first) + 2 - n;
        call.args.page_table = table.data();
        call.args.k = {k.data(), span, a.dtype};
        call.args.v = {v.data(), span, a.dtype};
        ASSERT_LE(heed_plan_workspace_bytes(plan.get()), call.args.workspace_bytes);
        ASSERT_EQ(heed_execute(plan.get(), &call.args), HEED_OK) << heed_last_error();
        expect_same_bits(call.out(), compact.out, "out");
    }
}

INSTANTIATE_TEST_SUITE_P(Rows, FarRows,
                         testing::ValuesIn(only(on_cpu(rows_of_64()), [](const Row &row) { return !row.int8_kv(); })),
                         row_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FarRows);

INSTANTIATE_TEST_SUITE_P(Rows, FarPages,
                         testing::ValuesIn(only(on_cpu(rows_of_64()),
                                                [](const Row &row) { return row.paged() && !row.int8_kv(); })),
                         row_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FarPages);

class MaskOffsets : public FarRows {};

// A mask of 2^34 elements: only the diagonal is looked at.
TEST_P(MaskOffsets, Case42_MaskBeyond32Bits) {
    constexpr int64_t len = 131072;
    Attention a = row().attention({1, 1, 1, len, len, 64, 64}, Data::zero);
    for (size_t n = 0; n < a.v.size(); n++) a.v[n] = static_cast<float>(n % 1021);
    a.window_left = a.window_right = 0;
    Call plain(a, options());
    ASSERT_EQ(plain.prepare(), HEED_OK) << heed_last_error();
    for (const bool explicit_mask : {true, false}) {
        heed_problem masked = plain.problem;
        masked.has_mask = masked.mask_true_hides = true;  // untouched memory lets all keys be seen
        if (!explicit_mask) masked.mask_shape[2] = 1;
        heed_status status = HEED_OK;
        const Plan plan = plan_of(row(), masked, &status);
        if (status != HEED_OK) {
            EXPECT_TRUE(explicit_mask) << heed_last_error();
            EXPECT_EQ(status, HEED_UNSUPPORTED) << heed_last_error();
            continue;
        }
        const int64_t elements = explicit_mask ? len * len : len;
        const ReservedBuffer mask(elements);
        auto *bytes = static_cast<uint8_t *>(mask.data());
        bytes[elements - 2] = 1;  // hides the key before the last row's own
        heed_args args = plain.args;
        args.mask = {mask.data(), elements, HEED_U8};
        ASSERT_LE(heed_plan_workspace_bytes(plan.get()), args.workspace_bytes);
        ASSERT_EQ(heed_execute(plan.get(), &args), HEED_OK) << heed_last_error();
        const auto *last = static_cast<const float *>(args.out.data) + (len - 1) * 64;
        EXPECT_EQ(std::memcmp(last, a.v_row(0, len - 1, 0), 64 * sizeof(float)), 0);
        bytes[elements - 1] = 1;
        ASSERT_EQ(heed_execute(plan.get(), &args), HEED_OK) << heed_last_error();
        for (int32_t d = 0; d < 64; d++) ASSERT_EQ(last[d], 0);
    }
}

// Prefill rows: for 131072 queries a decode row keeps the states of all of them.
std::vector<Row> masked_prefill_rows() {
    return only(on_cpu(score_rows_of_64()), [](const Row &row) { return row.leads() && !row.decode(); });
}

INSTANTIATE_TEST_SUITE_P(Rows, MaskOffsets, testing::ValuesIn(masked_prefill_rows()), row_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MaskOffsets);

class FarDropout : public Adversarial {};

// An element index beyond 2^32, the largest seed and a large offset. Only the longest lengths count for the index: 40
// keys of a cache of 2^28 are there.
TEST_P(FarDropout, Case43_MaskIndexBeyond32Bits) {
    Attention a = row().attention(shape(3, 40), Data::normal, 43);
    make_exact_set(&a);
    a.q_lens = {3, 2};
    a.dropout_p = 0.5f;
    a.dropout_seed = ~uint64_t{0};
    a.dropout_offset = uint64_t{1} << 63;
    Call call(a, options().with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN));
    call.problem.max_kv_len = 1 << 28;
    call.problem.num_splits = 1;
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    const std::vector<float> out = call.out();
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (int32_t i = 0; i < a.q_len_of(b); i++) {
                std::vector<int32_t> expected;
                const auto query = static_cast<uint64_t>((b * a.num_heads + h) * a.q_len + i);
                for (int32_t j = 0; j < a.kv_len; j++) {
                    const uint64_t e = (query << 28) + static_cast<uint64_t>(j);
                    if (dropout_keeps(e, a.dropout_p, a.dropout_seed, a.dropout_offset)) expected.push_back(j);
                }
                ASSERT_EQ(named_keys(a, out.data() + a.out_index(b, i, h), 1 / (0.5 * a.kv_len)), expected)
                    << "batch " << b << ", head " << h << ", query " << i;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Rows, FarDropout, testing::ValuesIn(rows_for({1, 1, 1, 1, 1, 64, 64}, HEED_FEATURE_DROPOUT)),
                         row_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FarDropout);

// Sizes whose products no integer holds: refused by the plan, without an attempt to allocate.
TEST(Dimensions, Case41_ProductsBeyond64Bits) {
    constexpr int32_t most = std::numeric_limits<int32_t>::max();
    heed_problem p;
    ASSERT_EQ(heed_problem_init(&p), HEED_OK);
    p.batch = p.num_heads = p.num_kv_heads = p.max_q_len = p.max_kv_len = most;
    p.head_dim = p.head_dim_v = 64;
    const auto status_of = [&p] {
        heed_plan *plan = nullptr;
        const heed_status status = heed_plan_create(&p, &plan);
        EXPECT_EQ(plan, nullptr);
        EXPECT_EQ(heed_plan_workspace_bytes(plan), 0u);
        return status;
    };
    EXPECT_EQ(status_of(), HEED_INVALID_ARGUMENT);
    p.kv_storage = HEED_KV_PAGED;
    p.has_kv_lens = true;
    p.num_pages = p.page_size = p.max_pages_per_seq = most;
    EXPECT_EQ(status_of(), HEED_INVALID_ARGUMENT);
    p.batch = p.num_heads = p.num_kv_heads = p.max_q_len = 1;  // the pool alone
    p.max_kv_len = 10;
    EXPECT_TRUE(status_of() == HEED_INVALID_ARGUMENT || status_of() == HEED_UNSUPPORTED);
    p.q_storage = HEED_Q_VARLEN;
    p.num_heads = p.num_kv_heads = p.total_q = most;
    EXPECT_TRUE(status_of() == HEED_INVALID_ARGUMENT || status_of() == HEED_UNSUPPORTED);
    for (int32_t *const field :
         {&p.batch, &p.num_heads, &p.num_kv_heads, &p.head_dim, &p.head_dim_v, &p.max_q_len, &p.max_kv_len, &p.total_q,
          &p.total_kv, &p.num_pages, &p.page_size, &p.max_pages_per_seq}) {
        for (const int32_t value : {-1, std::numeric_limits<int32_t>::min()}) {
            const int32_t kept = *field;
            *field = value;
            EXPECT_EQ(status_of(), HEED_INVALID_ARGUMENT) << value;
            *field = kept;
        }
    }
}

}  // namespace
}  // namespace heed_test
