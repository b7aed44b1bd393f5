// Cases 40 to 43: tensors, masks and dropout masks beyond 2^31 elements, sizes that overflow.
#include "runtime/reference/philox.h"
#include "tests/adversarial/adversarial.h"

namespace heed_test {
namespace {

// k and v of a call, [batch, len, kv head, 64] packed, at other places of memory of which nothing else is there.
class FarKeys {
public:
    FarKeys(const Call &call, const Attention &a, int64_t span)
        : from_(call.args), heads_(a.num_kv_heads), bytes_(element_bytes(a.kv_dtype())), span_(span), k_(span * bytes_),
          v_(span * bytes_) {}

    // Row `row` of the packed tensors, from element `at` on.
    void store(int64_t row, int64_t at) {
        const auto copy = [&](const heed_tensor &from, const ReservedBuffer &to) {
            std::memcpy(static_cast<char *>(to.data()) + at * bytes_,
                        static_cast<const char *>(from.data) + row * 64 * bytes_, static_cast<size_t>(64 * bytes_));
        };
        copy(from_.k, k_);
        copy(from_.v, v_);
    }
    // All heads of a token, packed.
    void store_token(int64_t token, int64_t at) {
        for (int64_t g = 0; g < heads_; g++) store(token * heads_ + g, at + g * 64);
    }
    void set(heed_args *args) const {
        args->k = {k_.data(), span_, from_.k.dtype};
        args->v = {v_.data(), span_, from_.v.dtype};
    }

private:
    const heed_args &from_;
    const int64_t heads_, bytes_, span_;
    ReservedBuffer k_, v_;
};

class FarRows : public Adversarial {
protected:
    Plan plan_of(const heed_problem &problem, heed_status *status) const {
        const ForcedKernel forced(kernel().name);
        heed_plan *created = nullptr;
        *status = heed_plan_create(&problem, &created);
        return Plan(created);
    }
    // Kernels that copy keys refuse more than they can; what they then take is more than a test wants to touch.
    bool packs_too_much(const heed_plan *plan, heed_status status) const {
        if (status != HEED_UNSUPPORTED) return heed_plan_workspace_bytes(plan) > size_t{1} << 28;
        const char *const most = kernel().widens_keys() ? "copies of heads in f32, of up to" : "the kernel packs up to";
        EXPECT_THAT(heed_last_error(), ::testing::HasSubstr(most));
        return true;
    }
};

class FarPages : public FarRows {};

// Rows of k and v so far apart that their offsets, or the strides themselves, pass 2^31 elements.
TEST_P(FarRows, Case40_StridesBeyond32Bits) {
    const Attention a = kernel().attention({2, 4, 2, 2, 5, 64, 64}, Data::normal, 40);
    const Result compact = expect_correct(a, contiguous());
    const int64_t half = int64_t{1} << 31, last[3] = {a.batch - 1, a.kv_len - 1, a.num_kv_heads - 1};
    for (const int dim : {0, 1, 2}) {
        for (const int64_t reach : some<int64_t>({half / 2, half - 1, half, half + 64, 2 * half, 5 * half + 4})) {
            int64_t stride[3] = {5 * 2 * 64, 2 * 64, 64};
            stride[dim] = reach / last[dim];
            const int64_t span = last[0] * stride[0] + last[1] * stride[1] + last[2] * stride[2] + 64;
            Call call(a, contiguous());
            ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
            FarKeys far(call, a, span);
            for (int64_t row = 0; row < a.batch * a.kv_len * a.num_kv_heads; row++) {
                far.store(row, row / 10 * stride[0] + row / 2 % 5 * stride[1] + row % 2 * stride[2]);
            }
            call.problem.k_layout = call.problem.v_layout = {{stride[0], stride[1], stride[2], 1}};
            heed_status status = HEED_OK;
            const Plan plan = plan_of(call.problem, &status);
            ASSERT_EQ(status, HEED_OK) << heed_last_error();
            far.set(&call.args);
            ASSERT_EQ(heed_execute(plan.get(), &call.args), HEED_OK) << heed_last_error();
            expect_same_bits({HEED_OK, call.out(), call.lse()}, compact);
        }
    }
}

// A window at the end of a cache of 4 million tokens and 8 heads, 2^31 elements and some.
TEST_P(FarRows, Case40_LongCache) {
    Attention a = kernel().attention({1, 8, 8, 2, 40, 64, 64}, Data::normal, 45);
    a.causal = true;
    a.window_left = 15;
    a.position = HEED_BOTTOM_RIGHT;
    CallOptions one_split = contiguous();
    one_split.num_splits = 1;
    expect_correct(a, one_split);
    Call call(a, one_split);
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    constexpr int64_t len = (int64_t{1} << 22) + 3, token = int64_t{8} * 64;
    FarKeys far(call, a, len * token);
    for (int64_t j = 0; j < a.kv_len; j++) far.store_token(j, (len - a.kv_len + j) * token);
    const ReservedBuffer k_scale(len * 8 * 4), v_scale(len * 8 * 4);
    if (a.int8_kv) {
        const auto copy = [&](heed_tensor *scales, const ReservedBuffer &to) {
            std::memcpy(static_cast<float *>(to.data()) + (len - a.kv_len) * 8, scales->data,
                        static_cast<size_t>(a.kv_len) * 8 * 4);
            *scales = {to.data(), len * 8, HEED_F32};
        };
        copy(&call.args.k_scale, k_scale);
        copy(&call.args.v_scale, v_scale);
    }
    call.problem.max_kv_len = static_cast<int32_t>(len);
    heed_status status = HEED_OK;
    const Plan plan = plan_of(call.problem, &status);
    if (packs_too_much(plan.get(), status)) return;
    ASSERT_EQ(status, HEED_OK) << heed_last_error();
    const GuardedBuffer workspace(heed_plan_workspace_bytes(plan.get()), Flush::rear);
    call.args.workspace = workspace.data();
    call.args.workspace_bytes = workspace.bytes();
    far.set(&call.args);
    ASSERT_EQ(heed_execute(plan.get(), &call.args), HEED_OK) << heed_last_error();
    expect_close(a, {HEED_OK, call.out(), call.lse()});
}

// A cache that all sequences share, of stride 0 along the batch: the product of its extents passes 2^31.
TEST_P(FarRows, Case40_OneCacheOfManySequences) {
    constexpr int32_t batch = 70, capacity = 500000;
    constexpr int64_t span = int64_t{capacity} * 64;
    Attention a = kernel().attention({batch, 1, 1, 1, 5, 64, 64}, Data::normal, 44);
    if (a.int8_kv) return;  // scales have no strides
    a.kv_lens.assign(batch, a.kv_len);
    for (int32_t b = 1; b < batch; b++) {
        std::copy_n(a.k.begin(), a.kv_len * 64, a.k.begin() + int64_t{b} * a.kv_len * 64);
        std::copy_n(a.v.begin(), a.kv_len * 64, a.v.begin() + int64_t{b} * a.kv_len * 64);
    }
    CallOptions one_split = contiguous();
    one_split.num_splits = 1;
    const Result compact = expect_correct(a, one_split);
    Call call(a, one_split);
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    FarKeys far(call, a, span);
    for (int64_t j = 0; j < a.kv_len; j++) far.store(j, j * 64);
    heed_problem shared = call.problem;
    shared.max_kv_len = capacity;
    shared.k_layout = shared.v_layout = {{0, 64, 64, 1}};
    heed_status status = HEED_OK;
    const Plan plan = plan_of(shared, &status);
    if (packs_too_much(plan.get(), status)) return;
    ASSERT_EQ(status, HEED_OK) << heed_last_error();
    far.set(&call.args);
    const ReservedBuffer workspace(static_cast<int64_t>(heed_plan_workspace_bytes(plan.get())));
    call.args.workspace = workspace.data();
    call.args.workspace_bytes = heed_plan_workspace_bytes(plan.get());
    ASSERT_EQ(heed_execute(plan.get(), &call.args), HEED_OK) << heed_last_error();
    expect_same_bits({HEED_OK, call.out(), call.lse()}, compact);
}

// Tokens of the last sequence after 2^31 elements of a varlen tensor; the long sequence before it has no queries.
TEST_P(FarRows, Case40_VarlenTokensBeyond32Bits) {
    Attention a = kernel().attention({2, 2, 1, 2, 5, 64, 64}, Data::normal, 41);
    if (a.int8_kv) return;  // as Case40_LongCache
    a.q_lens = {0, 2};
    CallOptions varlen = options().with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN);
    varlen.num_splits = 1;
    const Result compact = expect_correct(a, varlen);
    for (const int64_t first : {int64_t{1} << 20, (int64_t{1} << 25) - 2, int64_t{1} << 25, int64_t{1} << 26}) {
        Call call(a, varlen);
        ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        call.problem.total_kv = static_cast<int32_t>(first) + a.kv_len;
        call.problem.max_kv_len = static_cast<int32_t>(first);
        heed_status status = HEED_OK;
        const Plan plan = plan_of(call.problem, &status);
        if (packs_too_much(plan.get(), status)) continue;
        ASSERT_EQ(status, HEED_OK) << heed_last_error();
        FarKeys far(call, a, int64_t{call.problem.total_kv} * 64);
        for (int64_t j = 0; j < a.kv_len; j++) far.store(a.kv_len + j, (first + j) * 64);
        const GuardedBuffer workspace(heed_plan_workspace_bytes(plan.get()), Flush::rear);
        const int32_t cu_seqlens[] = {0, static_cast<int32_t>(first), call.problem.total_kv};
        call.args.cu_seqlens_kv = cu_seqlens;
        far.set(&call.args);
        call.args.workspace = workspace.data();
        call.args.workspace_bytes = workspace.bytes();
        ASSERT_EQ(heed_execute(plan.get(), &call.args), HEED_OK) << heed_last_error();
        expect_same_bits({HEED_OK, call.out(), call.lse()}, compact);
    }
}

// Pages whose offsets in the pool pass 2^31 elements.
TEST_P(FarPages, Case40_PagesBeyond32Bits) {
    const Attention a = kernel().attention({1, 2, 1, 2, 40, 64, 64}, Data::normal, 42);
    const Result compact = expect_correct(a, options().with_pages(16));
    const int64_t page = 16 * 64, limit = (int64_t{1} << 31) / page;
    for (const int64_t first : {int64_t{5}, limit - 2, limit, 2 * limit - 1}) {
        Call in_place(a, contiguous()), call(a, options().with_pages(16));
        ASSERT_EQ(in_place.prepare(), HEED_OK) << heed_last_error();
        ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        call.problem.num_pages = static_cast<int32_t>(first) + 3;
        heed_status status = HEED_OK;
        const Plan plan = plan_of(call.problem, &status);
        ASSERT_EQ(status, HEED_OK) << heed_last_error();
        const int64_t tokens = int64_t{call.problem.num_pages} * 16;
        FarKeys far(in_place, a, tokens * 64);
        const ReservedBuffer k_scale(tokens * 4), v_scale(tokens * 4);
        for (int64_t j = 0; j < a.kv_len; j++) {
            const int64_t token = (first + 2 - j / 16) * 16 + j % 16;
            far.store(j, token * 64);
            if (!a.int8_kv) continue;
            static_cast<float *>(k_scale.data())[token] = static_cast<const float *>(in_place.args.k_scale.data)[j];
            static_cast<float *>(v_scale.data())[token] = static_cast<const float *>(in_place.args.v_scale.data)[j];
        }
        std::vector<int32_t> table(static_cast<size_t>(call.problem.max_pages_per_seq), garbage_page);
        for (int32_t n = 0; n < 3; n++) table[static_cast<size_t>(n)] = static_cast<int32_t>(first) + 2 - n;
        call.args.page_table = table.data();
        far.set(&call.args);
        if (a.int8_kv) {
            call.args.k_scale = {k_scale.data(), tokens, HEED_F32};
            call.args.v_scale = {v_scale.data(), tokens, HEED_F32};
        }
        ASSERT_LE(heed_plan_workspace_bytes(plan.get()), call.args.workspace_bytes);
        ASSERT_EQ(heed_execute(plan.get(), &call.args), HEED_OK) << heed_last_error();
        expect_same_bits(call.out(), compact.out, "out");
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, FarRows, testing::ValuesIn(on_cpu(kernels_of_64())), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FarRows);

INSTANTIATE_TEST_SUITE_P(Kernels, FarPages,
                         testing::ValuesIn(only(on_cpu(kernels_of_64()),
                                                [](const TableKernel &kernel) { return kernel.paged(); })),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FarPages);

class MaskOffsets : public FarRows {};

// A mask of 2^34 elements: only the diagonal is looked at.
TEST_P(MaskOffsets, Case42_MaskBeyond32Bits) {
    constexpr int64_t len = 131072;
    Attention a = kernel().attention({1, 1, 1, len, len, 64, 64}, Data::zero);
    for (size_t n = 0; n < a.v.size(); n++) a.v[n] = static_cast<float>(n % 1021);
    a.window_left = a.window_right = 0;
    Call plain(a, options());
    ASSERT_EQ(plain.prepare(), HEED_OK) << heed_last_error();
    for (const bool explicit_mask : {true, false}) {
        heed_problem masked = plain.problem;
        masked.has_mask = masked.mask_true_hides = true;  // untouched memory lets all keys be seen
        if (!explicit_mask) masked.mask_shape[2] = 1;
        heed_status status = HEED_OK;
        const Plan plan = plan_of(masked, &status);
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
        const ReservedBuffer workspace(static_cast<int64_t>(heed_plan_workspace_bytes(plan.get())));
        args.workspace = workspace.data();
        args.workspace_bytes = heed_plan_workspace_bytes(plan.get());
        ASSERT_EQ(heed_execute(plan.get(), &args), HEED_OK) << heed_last_error();
        const auto *last = static_cast<const float *>(args.out.data) + (len - 1) * 64;
        EXPECT_EQ(std::memcmp(last, a.v_row(0, len - 1, 0), 64 * sizeof(float)), 0);
        bytes[elements - 1] = 1;
        ASSERT_EQ(heed_execute(plan.get(), &args), HEED_OK) << heed_last_error();
        for (int32_t d = 0; d < 64; d++) ASSERT_EQ(last[d], 0);
    }
}

// Prefill kernels: for 131072 queries a decode kernel keeps the states of all of them.
std::vector<TableKernel> masked_prefill_kernels() {
    return only(on_cpu(score_kernels_of_64()),
                [](const TableKernel &kernel) { return kernel.leads() && !kernel.decode(); });
}

INSTANTIATE_TEST_SUITE_P(Kernels, MaskOffsets, testing::ValuesIn(masked_prefill_kernels()), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MaskOffsets);

class FarDropout : public Adversarial {};

// An element index beyond 2^32, the largest seed and a large offset. Only the longest lengths count for the index: 40
// keys of a cache of 2^28 are there.
TEST_P(FarDropout, Case43_MaskIndexBeyond32Bits) {
    Attention a = kernel().attention(shape(3, 40), Data::normal, 43);
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

INSTANTIATE_TEST_SUITE_P(Kernels, FarDropout,
                         testing::ValuesIn(kernels_for({1, 1, 1, 1, 1, 64, 64}, HEED_FEATURE_DROPOUT)),
                         kernel_test_name);
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
