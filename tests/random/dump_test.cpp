// What a failing problem is written as: the file holds the same problem.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/reference/case_file.h"
#include "runtime/reference/reference.h"
#include "runtime/reference/reference_case.h"
#include "tests/random/solve.h"
#include "tests/support/dump.h"

namespace heed_test {
namespace {

// Both references row by row: the file's lengths end with the longest sequence.
void expect_same(const Attention &a, const Attention &from_file) {
    const Reference expected = compute_reference(a, false), got = compute_reference_as_held(from_file, false);
    ASSERT_EQ(from_file.batch, a.batch);
    for (int32_t b = 0; b < a.batch; b++) {
        ASSERT_EQ(from_file.q_len_of(b), a.q_len_of(b));
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (int32_t i = 0; i < a.q_len_of(b); i++) {
                ASSERT_EQ(got.lse[static_cast<size_t>(from_file.lse_index(b, h, i))],
                          expected.lse[static_cast<size_t>(a.lse_index(b, h, i))]);
                for (int64_t d = 0; d < a.head_dim_v; d++) {
                    ASSERT_EQ(got.out[static_cast<size_t>(from_file.out_index(b, i, h) + d)],
                              expected.out[static_cast<size_t>(a.out_index(b, i, h) + d)]);
                }
            }
        }
    }
}

TEST(Dump, FileHoldsTheProblem) {
    const std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("heed_case_" + std::to_string(getpid()) + ".safetensors");
    const std::vector<TableKernel> kernels = supported_kernels();
    int32_t paged = 0, varlen = 0;
    for (uint64_t seed = 0; seed < 600; seed++) {
        const RandomProblem problem = draw_problem(seed, kernels);
        const Solution solution = solve(problem);
        if (solution.kind != Solution::right || !solution.needed_kernel) continue;
        SCOPED_TRACE(describe(problem));
        const Attention a = attention_of(problem);
        dump_case(path, a, problem.options);
        const heed_reference::Case c = heed_reference::read_case(path);
        expect_same(a, heed_reference::attention_of(c));
        paged += c.problem.kv_storage == HEED_KV_PAGED;
        varlen += c.problem.kv_storage == HEED_KV_VARLEN;
        std::filesystem::remove(path);
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(paged, 0);
    EXPECT_GT(varlen, 0);
}

}  // namespace
}  // namespace heed_test
