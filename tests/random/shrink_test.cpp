// The shrinker on predicates in place of kernels, and the draw.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "tests/random/shrink.h"

namespace heed_test {
namespace {

std::vector<TableKernel> kernels_of_every_kind() { return all_kernels(); }

TEST(Shrink, KeepsWhatTheFailureNeeds) {
    const auto fails = [](const RandomProblem &p) {
        return p.settings.causal && p.settings.kv_len > 5 && p.settings.q_len >= 2 && p.mask;
    };
    int32_t shrunk = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        const RandomProblem problem = draw_problem(seed, kernels_of_every_kind());
        if (!fails(problem)) continue;
        const RandomProblem smallest = shrink(problem, fails);
        ASSERT_TRUE(fails(smallest));
        EXPECT_EQ(smallest.settings.kv_len, 6);
        EXPECT_EQ(smallest.settings.q_len, 2);
        EXPECT_EQ(smallest.settings.batch, problem.settings.batch == 0 ? 0 : 1);
        EXPECT_EQ(smallest.settings.num_heads, 1);
        EXPECT_FALSE(smallest.bias || smallest.sink || smallest.alibi || smallest.poison);
        EXPECT_EQ(smallest.options.kv_storage, HEED_KV_CONTIGUOUS);
        EXPECT_EQ(smallest.options.num_threads, 1);
        shrunk++;
    }
    EXPECT_GT(shrunk, 3);
}

TEST(Shrink, KeepsPagesAndFillsThem) {
    const auto fails = [](const RandomProblem &p) {
        return p.options.kv_storage == HEED_KV_PAGED && p.options.page_size >= 4 && p.settings.kv_len >= 10;
    };
    int32_t shrunk = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        const RandomProblem problem = draw_problem(seed, kernels_of_every_kind());
        if (!fails(problem)) continue;
        const RandomProblem smallest = shrink(problem, fails);
        EXPECT_EQ(smallest.options.page_size, 4);
        EXPECT_EQ(smallest.settings.kv_len, 12);
        EXPECT_EQ(smallest.options.spare_columns, 0);
        shrunk++;
    }
    EXPECT_GT(shrunk, 3);
}

TEST(Shrink, ListsFollowTheBatch) {
    const auto fails = [](const RandomProblem &p) { return p.settings.batch >= 2 && !p.settings.kv_lens.empty(); };
    for (uint64_t seed = 0; seed < 60; seed++) {
        const RandomProblem problem = draw_problem(seed, kernels_of_every_kind());
        if (!fails(problem)) continue;
        const RandomProblem smallest = shrink(problem, fails);
        EXPECT_EQ(smallest.settings.batch, 2);
        EXPECT_EQ(smallest.settings.kv_lens.size(), 2u);
        for (const int32_t kv_len : smallest.settings.kv_lens) EXPECT_LE(kv_len, smallest.settings.kv_len);
    }
}

// In a thousand problems every field takes values other than its default.
TEST(Draw, ReachesEveryField) {
    std::set<std::string> reached;
    const auto note = [&reached](bool seen, const char *what) {
        if (seen) reached.insert(what);
    };
    const char *const positions[] = {"top_left", "bottom_right", "explicit"};
    const char *const storages[] = {"contiguous", "varlen", "paged"};
    const char *const dtypes[] = {"f32", "f16", "bf16"};
    const LogitFields plain;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        const RandomProblem p = draw_problem(seed, kernels_of_every_kind());
        const Attention &a = p.settings;
        reached.insert({positions[a.position], storages[p.options.kv_storage], dtypes[a.dtype]});
        note(a.int8_kv, "int8");
        note(a.head_dim != a.head_dim_v, "head_dim_v");
        note(a.num_heads == a.num_kv_heads, "mha");
        note(a.num_heads > a.num_kv_heads && a.num_kv_heads > 1, "gqa");
        note(a.batch == 0 || a.q_len == 0, "empty");
        note(a.kv_len == 0, "no keys");
#define HEED_NOTE(name, initial, ...) note(std::memcmp(&a.name, &plain.name, sizeof(a.name)) != 0, #name);
        HEED_LOGIT_FIELDS(HEED_NOTE)
#undef HEED_NOTE
        note(a.window_left >= 0 && a.window_right >= 0, "window");
        note(a.scale == 0, "scale 0");
        note(a.scale < 0, "negative scale");
        note(p.mask && a.mask_true_hides, "hiding mask");
        note(p.bias && a.bias_dtype != HEED_F32, "bias of 16 bits");
        note(p.sink, "sink");
        note(p.alibi, "alibi");
        note(p.temperature, "temperature");
        note(a.dropout_p == 1, "all dropped");
        note(a.dropout_p > 0 && a.dropout_p < 1, "dropout");
        note(!p.options.want_lse, "no lse");
        note(p.options.batch_invariant, "batch_invariant");
        note(p.options.num_splits > 1, "splits");
        note(p.max_threads == 0, "default threads");
        note(p.options.num_threads > 1, "threads");
        note(p.options.fused_qkv, "fused qkv");
        note(p.options.garbage_strides, "garbage strides");
        note(p.options.q_storage == HEED_Q_VARLEN, "varlen queries");
        note(p.padded_lse && p.padded_scores, "padded lse and scores");
        note(p.zero_strides, "strides of 0");
        note(p.shared_kv, "shared keys");
        note(p.poison, "poison");
        note(!p.options.kernel.empty(), "forced");
    }
#define HEED_COUNT(name, ...) +1u
    EXPECT_EQ(reached.size(), 9u + 29u HEED_LOGIT_FIELDS(HEED_COUNT)) << testing::PrintToString(reached);
#undef HEED_COUNT
}

}  // namespace
}  // namespace heed_test
