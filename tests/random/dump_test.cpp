// What a failing problem is written as: the folder holds the same problem.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "case_folder.h"
#include "dump.h"
#include "reference.h"
#include "reference_case.h"
#include "solve.h"

namespace heed_test {
namespace {

// Both references row by row: the folder's lengths end with the longest sequence.
void expect_same(const Attention &a, const Attention &from_folder) {
    const Reference expected = compute_reference(a, false), got = compute_reference_as_held(from_folder, false);
    ASSERT_EQ(from_folder.batch, a.batch);
    for (int32_t b = 0; b < a.batch; b++) {
        ASSERT_EQ(from_folder.q_len_of(b), a.q_len_of(b));
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (int32_t i = 0; i < a.q_len_of(b); i++) {
                ASSERT_EQ(got.lse[static_cast<size_t>(from_folder.lse_index(b, h, i))],
                          expected.lse[static_cast<size_t>(a.lse_index(b, h, i))]);
                for (int64_t d = 0; d < a.head_dim_v; d++) {
                    ASSERT_EQ(got.out[static_cast<size_t>(from_folder.out_index(b, i, h) + d)],
                              expected.out[static_cast<size_t>(a.out_index(b, i, h) + d)]);
                }
            }
        }
    }
}

TEST(Dump, FolderHoldsTheProblem) {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("heed_case_" + std::to_string(getpid()));
    const std::vector<Row> rows = supported_rows();
    int32_t paged = 0, varlen = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        const RandomProblem problem = draw_problem(seed, rows);
        const Solution solution = solve(problem);
        if (solution.kind != Solution::right || !solution.needed_kernel) continue;
        SCOPED_TRACE(describe(problem));
        const Attention a = attention_of(problem);
        dump_case(folder.string(), a, problem.options);
        const heed_cli::Case c = heed_cli::read_case(folder);
        expect_same(a, heed_cli::attention_of(c));
        paged += c.problem.kv_storage == HEED_KV_PAGED;
        varlen += c.problem.kv_storage == HEED_KV_VARLEN;
        std::filesystem::remove_all(folder);
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(paged, 0);
    EXPECT_GT(varlen, 0);
}

}  // namespace
}  // namespace heed_test
