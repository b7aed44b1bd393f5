// The workspace that a layer states suffices for each call that it serves: plans of all masks, storages and sizes.
#include <tuple>

#include "heed/heed.hpp"
#include "runtime/workspace.h"
#include "tests/layer/small_layer.h"

namespace heed_test {
namespace {

enum class Masks { none, shared, own, own_bias };

heed_problem dense(heed_dtype dtype, int32_t head_dim, int32_t head_dim_v, int32_t threads) {
    heed_problem p;
    heed_problem_init(&p);
    p.dtype = p.kv_dtype = dtype;
    p.batch = 6;
    p.num_heads = p.num_kv_heads = 8;
    p.head_dim = head_dim;
    p.head_dim_v = head_dim_v;
    p.max_q_len = p.max_kv_len = 160;
    p.max_threads = threads;
    return p;
}

void expect_fits(heed_problem p, Masks masks, int64_t most) {
    p.has_mask = masks == Masks::shared || masks == Masks::own;
    p.has_bias = masks == Masks::own_bias;
    const int64_t row = p.max_kv_len, rows = p.max_q_len * row;
    if (masks == Masks::shared) p.mask_layout = {{0, 0, row, 1}};
    if (masks == Masks::own) p.mask_layout = {{p.num_heads * rows, rows, row, 1}};
    if (masks == Masks::own_bias) p.bias_layout = {{p.num_heads * rows, rows, row, 1}};
    EXPECT_LE(static_cast<int64_t>(heed::Plan(p).workspace_bytes()), most)
        << p.batch << " sequences of " << p.max_q_len << " queries and " << p.max_kv_len << " keys, head_dim "
        << p.head_dim << ", " << p.max_threads << " threads, masks " << static_cast<int>(masks) << ", causal "
        << p.causal;
}

class LargestWorkspace : public testing::TestWithParam<std::tuple<heed_dtype, std::pair<int32_t, int32_t>, int32_t>> {};

TEST_P(LargestWorkspace, SufficesForSmallerProblems) {
    const auto [dtype, head_dims, threads] = GetParam();
    for (const int32_t kv_heads : {8, 1}) {
        for (const int32_t longest : {1, 8, 160}) {
            heed_problem largest = dense(dtype, head_dims.first, head_dims.second, threads);
            largest.num_kv_heads = kv_heads;
            largest.max_q_len = longest;
            const int64_t most = heed::most_workspace_bytes(largest);
            ASSERT_GT(most, 0);
            for (const int32_t batch : {1, 2, 6}) {
                for (const int32_t q_len : {1, 8, 24, 100, 160}) {
                    if (q_len > longest) continue;
                    for (const int32_t kv_len : {q_len, 160}) {
                        for (const bool causal : {false, true}) {
                            heed_problem p = largest;
                            p.batch = batch;
                            p.max_q_len = q_len;
                            p.max_kv_len = kv_len;
                            p.causal = causal;
                            for (const Masks masks : {Masks::none, Masks::shared, Masks::own, Masks::own_bias}) {
                                expect_fits(p, masks, most);
                            }
                        }
                    }
                }
            }
        }
    }
}

// Up to the most that decode kernels take, on both sides of where the choice among them changes.
TEST_P(LargestWorkspace, SufficesForFewQueriesOnManyKeys) {
    const auto [dtype, head_dims, threads] = GetParam();
    for (const int32_t kv_heads : {8, 2, 1}) {
        heed_problem largest = dense(dtype, head_dims.first, head_dims.second, threads);
        largest.num_kv_heads = kv_heads;
        largest.max_q_len = 49;
        largest.max_kv_len = 1024;
        const int64_t most = heed::most_workspace_bytes(largest);
        for (const int32_t q_len : {1, 4, 11, 12, 24, 25, 48, 49}) {
            for (const int32_t kv_len : {64, 255, 256, 1023, 1024}) {
                heed_problem p = largest;
                p.batch = 2;
                p.max_q_len = q_len;
                p.max_kv_len = kv_len;
                expect_fits(p, Masks::none, most);
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Layers, LargestWorkspace,
                         testing::Combine(testing::Values(HEED_F32, HEED_F16, HEED_BF16),
                                          testing::Values(std::pair(64, 64), std::pair(64, 111), std::pair(128, 128),
                                                          std::pair(80, 80)),
                                          testing::Values(1, 2, 3, 16)));

}  // namespace
}  // namespace heed_test
