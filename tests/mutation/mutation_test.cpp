// Device code with one thing broken: the emulated device or the oracle must notice.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/mutation/child.h"

namespace heed_test {
namespace {

struct Broken {
    const char *name, *from, *to;
    int step = 1;  // every step-th occurrence is tried
};

void PrintTo(const Broken &broken, std::ostream *stream) { *stream << broken.name; }

using Parameter = std::tuple<const char *, Broken>;

class Mutations : public testing::TestWithParam<Parameter> {
protected:
    const std::string kernel_ = std::get<0>(GetParam());
    const Broken broken_ = std::get<1>(GetParam());

    // The last of the outcomes that were asked for, and the first that is not `correct`.
    Outcome outcome(int occurrence) const {
        Outcome outcome = Outcome::correct;
        for (const bool tiny : {true, false}) {
            for (const char *options : {"order=ascending,arrival=early", "order=random:3,arrival=late",
                                        "order=random:3,arrival=early,products=late"}) {
                outcome = run_in_child(kernel_, {broken_.from, broken_.to, occurrence}, tiny, options, true);
                if (outcome != Outcome::correct) return outcome;
            }
        }
        return outcome;
    }

    // What breaks nothing that this device knows.
    bool harmless(int occurrence) const {
        const struct {
            const char *kernel, *broken;
            int occurrence;
        } cases[] = {
            // Between the lanes of one warp that store weights and read them: any order of lanes is the same here.
            {"attention_prefill_f16_d64_contiguous_sm80", "barrier", 5},
            // Threads read what they have stored themselves: of rows, which stages deal out alike.
            {"attention_prefill_f32_d64_contiguous_sm75", "barrier", 1},
            {"attention_prefill_f32_d64_contiguous_sm75", "barrier", 4},
            {"attention_prefill_f32_d64_contiguous_sm75", "barrier", 5},
            // Infinities of the last 16 keys of a step, for the first 16 rows of a warp: all see them, or none.
            {"attention_prefill_bf16_d80_contiguous_sm80", "fragment_a", 174},
            {"attention_prefill_bf16_d80_contiguous_sm80", "fragment_b", 174},
        };
        for (const auto &known : cases) {
            if (kernel_ == known.kernel && broken_.name == std::string(known.broken) &&
                occurrence == known.occurrence) {
                return true;
            }
        }
        return false;
    }
};

TEST_P(Mutations, AreNoticed) {
    int noticed = 0;
    for (int n = 0;; n += broken_.step) {
        const Outcome of_this = outcome(n);
        if (of_this == Outcome::no_occurrence) break;
        EXPECT_EQ(of_this == Outcome::correct, harmless(n))
            << kernel_ << ": occurrence " << n << " of \"" << broken_.from << '"';
        if (of_this != Outcome::correct) noticed++;
    }
    EXPECT_GT(noticed, 0);
}

// Double buffered; single buffered; two groups of columns.
const char *const tensor_core_kernels[] = {
    "attention_prefill_f16_d64_contiguous_sm80",
    "attention_prefill_bf16_d80_contiguous_sm80",
    "attention_prefill_f16_d256_alibi_bias_mask_softcap_contiguous_sm80",
};
const char *const warpgroup_kernels[] = {"attention_prefill_f16_d64_contiguous_sm90",
                                         "attention_prefill_f16_d128_contiguous_sm90"};
const char *const f32_kernels[] = {"attention_prefill_f32_d64_contiguous_sm75"};

const Broken barriers = {"barrier", "bar.sync 0;", ""};
const Broken of_tensor_cores[] = {
    barriers,
    {"vote", "bar.red.or.pred any, 0, on;", "setp.ne.u32 any, 0, 0;"},
    {"wait", "cp.async.wait_group 0;", "cp.async.wait_group 1;"},
    {"commit", "cp.async.commit_group;", ""},
    {"copied_bytes", "[from], 16, ", "[from], 16; //"},
    {"matrix", "x4.shared.b16 {x0, x1, x2, x3}", "x4.shared.b16 {x0, x2, x1, x3}", 7},
    {"matrix_transposed", "x4.trans.shared.b16 {x0, x1, x2, x3}", "x4.trans.shared.b16 {x0, x2, x1, x3}", 7},
    {"fragment_a", "{a0, a1, a2, a3}, {b0, b1}, {c0", "{a1, a0, a2, a3}, {b0, b1}, {c0", 29},
    {"fragment_b", "{b0, b1}, {c0", "{b1, b0}, {c0", 29},
    {"accumulator", "f32 {c0, c1, c2, c3}, {a0", "f32 {c1, c0, c2, c3}, {a0", 29},
};
const Broken of_warpgroups[] = {
    barriers,
    {"wait", "cp.async.wait_group 0;", "cp.async.wait_group 1;"},
    {"commit", "cp.async.commit_group;", ""},
    {"wait_for_sums", "wgmma.wait_group.sync.aligned 0;", ""},
    {"wait_for_scores", "wgmma.wait_group.sync.aligned 1;", ""},
    {"commit_products", "wgmma.commit_group.sync.aligned;", ""},
};

std::string test_name(const testing::TestParamInfo<Parameter> &info) {
    return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(TensorCores, Mutations,
                         testing::Combine(testing::ValuesIn(tensor_core_kernels), testing::ValuesIn(of_tensor_cores)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Warpgroups, Mutations,
                         testing::Combine(testing::ValuesIn(warpgroup_kernels), testing::ValuesIn(of_warpgroups)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(F32, Mutations, testing::Combine(testing::ValuesIn(f32_kernels), testing::Values(barriers)),
                         test_name);

}  // namespace
}  // namespace heed_test
