// Siblings of cases 27 and 40: what other sequences of a packed batch, and page tables that do not exist, may not
// change.
#include "tests/adversarial/adversarial.h"

namespace heed_test {
namespace {

CallOptions packed() {
    CallOptions options;
    options.batch_invariant = true;
    return options.with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN);
}

// Sequence 0 of `all` as a batch of its own.
Attention alone(const Attention &all) {
    Shape shape = all;
    shape.batch = 1;
    shape.q_len = all.q_len_of(0);
    shape.kv_len = all.kv_len_of(0);
    Attention a = make_attention(shape);
    std::copy_n(all.q.begin(), a.q.size(), a.q.begin());
    std::copy_n(all.k.begin(), a.k.size(), a.k.begin());
    std::copy_n(all.v.begin(), a.v.size(), a.v.begin());
    return a;
}

// The longest query and the longest cache of a batch choose neither the kernel nor the splits of the others.
TEST(PackedBatchInvariance, Case27_BesideLongerSequences) {
    const struct { int32_t q_len, longest_q_len; } queries[] = {{1, 1}, {1, sized(100, 70)}, {4, 5}};
    for (const auto &[q_len, longest_q_len] : queries) {
        for (const int32_t kv_len : {sized(300, 30), sized(3000, 130)}) {
            for (const int32_t longest_kv_len : {sized(5000, 200), sized(20000, 300)}) {
                Attention all = make_attention({2, 4, 2, longest_q_len, longest_kv_len, 64, 64});
                all.q_lens = {q_len, longest_q_len};
                all.kv_lens = {kv_len, longest_kv_len};
                Attention one = alone(all);
                one.q_lens = {q_len};
                one.kv_lens = {kv_len};
                Call together(all, packed()), single(one, packed());
                ASSERT_EQ(together.run(), HEED_OK) << heed_last_error();
                ASSERT_EQ(single.run(), HEED_OK) << heed_last_error();
                EXPECT_EQ(together.kernel(), single.kernel());
                std::vector<float> of_one = together.out();
                of_one.resize(one.q.size());
                EXPECT_EQ(of_one, single.out()) << q_len << " of " << longest_q_len << " queries, " << kv_len << " of "
                                                << longest_kv_len << " keys";
            }
        }
    }
}

class ManyKeys : public Adversarial {};

// A kernel for pages serves strided keys too: 2^23 of them, one row of memory, look nothing up in a table of one entry.
TEST_P(ManyKeys, Case40_StridedKeysNeedNoPageTable) {
    constexpr int32_t kv_len = 1 << 23;
    const ForcedKernel forced(kernel().name);
    heed_problem p;
    ASSERT_EQ(heed_problem_init(&p), HEED_OK);
    p.batch = p.num_heads = p.num_kv_heads = p.max_q_len = 1;
    p.max_kv_len = kv_len;
    p.head_dim = p.head_dim_v = 64;
    p.k_layout = p.v_layout = {{64, 0, 64, 1}};
    heed_plan *created = nullptr;
    ASSERT_EQ(heed_plan_create(&p, &created), HEED_OK) << heed_last_error();
    const Plan plan(created);

    std::vector<float> q(64, 0.f), kv(64, 1.f), out(64), probs(kv_len);
    const GuardedBuffer workspace(heed_plan_workspace_bytes(created), Flush::front);
    heed_args args;
    ASSERT_EQ(heed_args_init(&args), HEED_OK);
    args.q = {q.data(), 64, HEED_F32};
    args.k = args.v = {kv.data(), 64, HEED_F32};
    args.out = {out.data(), 64, HEED_F32};
    args.workspace = workspace.data();
    args.workspace_bytes = heed_plan_workspace_bytes(created);
    ASSERT_EQ(heed_execute(created, &args), HEED_OK) << heed_last_error();
    for (const float x : out) ASSERT_NEAR(x, 1, 1e-3);

    const heed_tensor wide = {probs.data(), kv_len, HEED_F32};
    ASSERT_EQ(heed_attention_probs(created, &args, HEED_PROBS_SOFTMAX, &wide, nullptr), HEED_OK) << heed_last_error();
    for (const float x : probs) ASSERT_NEAR(x * kv_len, 1, 1e-3);
}

// For the CPU, where the table of a call without pages has one entry.
std::vector<TableKernel> paged_kernels_of_64() {
    return only(kernels_of_64(), [](const TableKernel &kernel) {
        return kernel.paged() && kernel.info.dtype == HEED_F32 && !kernel.int8_kv() && !kernel.cuda();
    });
}

INSTANTIATE_TEST_SUITE_P(Kernels, ManyKeys, testing::ValuesIn(paged_kernels_of_64()), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ManyKeys);

}  // namespace
}  // namespace heed_test
