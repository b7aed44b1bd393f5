// heed_plan_create refuses what the contract forbids, with a sentence that names the field, its value and what is
// allowed.
#include <cmath>
#include <limits>

#include "heed/fields.h"
#include "tests/api/fixture.h"

namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Problem : public ApiTest {
protected:
    heed_problem problem = make_problem(2, 8, 16);

    void expect(heed_status status, const std::string &sentence) {
        make_plan(problem, status);
        EXPECT_THAT(heed_last_error(), HasSubstr(sentence));
    }
};

constexpr int32_t int32_max = std::numeric_limits<int32_t>::max();
constexpr int64_t int64_max = std::numeric_limits<int64_t>::max();
constexpr int64_t int64_min = std::numeric_limits<int64_t>::min();

// As messages have it: the name and the number.
std::string named(heed_dtype dtype) {
    return heed_dtype_word(dtype) + (" (" + std::to_string(static_cast<int32_t>(dtype)) + ")");
}

TEST_F(Problem, InitSetsDefaults) {
    heed_problem fresh;
    std::memset(&fresh, 0xff, sizeof(fresh));
    ASSERT_EQ(heed_problem_init(&fresh), HEED_OK);
    EXPECT_EQ(fresh.struct_size, sizeof(fresh));
    EXPECT_TRUE(std::isnan(fresh.scale));
    EXPECT_EQ(fresh.window_left, -1);
    EXPECT_EQ(fresh.window_right, -1);
    EXPECT_EQ(fresh.position, HEED_TOP_LEFT);
    EXPECT_FALSE(fresh.causal);
    EXPECT_EQ(fresh.dropout_p, 0);
}

TEST_F(Problem, NullArguments) {
    EXPECT_EQ(heed_problem_init(nullptr), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(heed_args_init(nullptr), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(heed_plan_create(&problem, nullptr), HEED_INVALID_ARGUMENT);
    heed_plan *plan = reinterpret_cast<heed_plan *>(&problem);
    EXPECT_EQ(heed_plan_create(nullptr, &plan), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(plan, nullptr);
    heed_plan_destroy(nullptr);
    EXPECT_EQ(heed_plan_workspace_bytes(nullptr), 0u);
    EXPECT_STREQ(heed_plan_kernel_name(nullptr), "");
    EXPECT_STREQ(heed_plan_explain(nullptr), "");
    EXPECT_EQ(heed_plan_num_splits(nullptr), 0);
}

TEST_F(Problem, Case39_StructSize) {
    problem.struct_size = 0;
    expect(HEED_INVALID_ARGUMENT, "call heed_problem_init first");
    for (uint32_t size : {1u, uint32_t{sizeof(heed_problem)} - 8, uint32_t{sizeof(heed_problem)} + 8, ~0u}) {
        problem.struct_size = size;
        expect(HEED_INVALID_ARGUMENT, "struct_size is " + std::to_string(size));
    }
}

TEST_F(Problem, Case39_EnumsOutOfRange) {
    for (int32_t value : {-1, 3, 255, int32_max}) {
        const std::string is = " is " + std::to_string(value);
        problem = make_problem(2, 8, 16);
        problem.device = static_cast<heed_device>(value);
        expect(HEED_INVALID_ARGUMENT, "device" + is);
        problem = make_problem(2, 8, 16);
        problem.dtype = static_cast<heed_dtype>(value);
        expect(HEED_INVALID_ARGUMENT, "dtype is " + named(problem.dtype));
        problem = make_problem(2, 8, 16);
        problem.position = static_cast<heed_position>(value);
        expect(HEED_INVALID_ARGUMENT, "position" + is);
        problem = make_problem(2, 8, 16);
        problem.q_storage = static_cast<heed_q_storage>(value);
        expect(HEED_INVALID_ARGUMENT, "q_storage" + is);
        problem = make_problem(2, 8, 16);
        problem.kv_storage = static_cast<heed_kv_storage>(value);
        expect(HEED_INVALID_ARGUMENT, "kv_storage" + is);
    }
    for (int32_t value : {-1, 1, 2, 4, 5, 255}) {  // HEED_I8 (3) is legal, see below
        problem = make_problem(2, 8, 16);
        problem.kv_dtype = static_cast<heed_dtype>(value);
        expect(HEED_INVALID_ARGUMENT, "kv_dtype is " + named(problem.kv_dtype));
        problem = make_problem(2, 8, 16);
        problem.has_bias = true;
        problem.bias_dtype = static_cast<heed_dtype>(value);
        expect(HEED_INVALID_ARGUMENT, "(" + std::to_string(value) + "); it must be HEED_F32 (0) or dtype");
    }
}

TEST_F(Problem, FlagsOutOfRange) {
    std::memset(static_cast<void *>(&problem.causal), 2, 1);
    expect(HEED_INVALID_ARGUMENT, "causal is 2");
    problem = make_problem(2, 8, 16);
    std::memset(static_cast<void *>(&problem.want_lse), 0xff, 1);
    expect(HEED_INVALID_ARGUMENT, "want_lse is 255");
}

TEST_F(Problem, IllegalStorageCombinations) {
    problem.kv_storage = HEED_KV_VARLEN;
    expect(HEED_INVALID_ARGUMENT, "with dense queries");
    problem.q_storage = HEED_Q_VARLEN;
    problem.has_kv_lens = true;
    expect(HEED_INVALID_ARGUMENT, "has_kv_lens is 1");
    problem = make_problem(2, 8, 16);
    problem.kv_storage = HEED_KV_PAGED;
    expect(HEED_INVALID_ARGUMENT, "has_kv_lens is 0");
    problem.has_kv_lens = true;
    expect(HEED_INVALID_ARGUMENT, "page_size is 0");
}

TEST_F(Problem, NegativeCounts) {
    const std::pair<int32_t heed_problem::*, const char *> counts[] = {
        {&heed_problem::batch, "0..2147483647"},     {&heed_problem::num_heads, "0..2147483647"},
        {&heed_problem::max_q_len, "0..2147483647"}, {&heed_problem::max_kv_len, "0..2147483647"},
        {&heed_problem::total_q, "0..2147483647"},   {&heed_problem::num_pages, "0..2147483647"},
        {&heed_problem::head_dim, "1..640"},         {&heed_problem::head_dim_v, "1..640"},
        {&heed_problem::max_threads, "0..1024"},     {&heed_problem::num_splits, "0..2147483647"},
        {&heed_problem::num_kv_heads, "at least 1"}};
    for (const auto &[count, allowed] : counts) {
        for (int32_t value : {-1, std::numeric_limits<int32_t>::min()}) {
            problem = make_problem(2, 8, 16);
            problem.*count = value;
            expect(HEED_INVALID_ARGUMENT, " is " + std::to_string(value) + "; it must be " + allowed);
        }
    }
}

// Sets a field to a number, which its type may be too small for.
template <class T>
bool set_field(T *field, double number) {
    using Held =
        std::conditional_t<std::is_enum_v<T>, int32_t, std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>>;
    using Limits = std::numeric_limits<Held>;
    if (!Limits::has_infinity && (number < double{Limits::lowest()} || number > double{Limits::max()})) return false;
    const auto value = static_cast<Held>(number);
    std::memcpy(static_cast<void *>(field), &value, sizeof(value));
    return true;
}

TEST_F(Problem, EveryFieldIsInItsRange) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto expect_refusal = [&](const char *name, auto heed_problem::*field, double number, const char *allowed) {
        problem = make_problem(2, 8, 16);
        if (!set_field(&(problem.*field), number)) return;
        make_plan(problem, HEED_INVALID_ARGUMENT);
        EXPECT_THAT(heed_last_error(), AllOf(StartsWith(std::string(name) + " is "), EndsWith(allowed)));
    };
#define HEED_REFUSE(name, initial, least, most, allowed)                                                               \
    expect_refusal(#name, &heed_problem::name, least == -FLT_MAX ? -infinity : double{least} - 1, allowed);            \
    expect_refusal(#name, &heed_problem::name, double{most} == double{FLT_MAX} ? infinity : double{most} + 1, allowed);
    HEED_PROBLEM_FIELDS(HEED_REFUSE)
#undef HEED_REFUSE
}

TEST_F(Problem, Case31_HeadCounts) {
    const int32_t bad[][2] = {{7, 2}, {4, 0}, {2, 4}, {0, 0}, {0, 2}, {5, 3}};
    for (const auto &heads : bad) {
        problem.num_heads = heads[0];
        problem.num_kv_heads = heads[1];
        expect(HEED_INVALID_ARGUMENT, "num_kv_heads");
    }
    const int32_t good[][2] = {{1, 1}, {7, 7}, {28, 4}, {5, 1}};
    for (const auto &heads : good) {
        problem.num_heads = heads[0];
        problem.num_kv_heads = heads[1];
        EXPECT_TRUE(make_plan(problem));
    }
}

TEST_F(Problem, Case33_HeadDims) {
    problem.head_dim = 0;
    expect(HEED_INVALID_ARGUMENT, "head_dim is 0");
    problem.head_dim = 64;
    problem.head_dim_v = 0;
    expect(HEED_INVALID_ARGUMENT, "head_dim_v is 0");
    for (int32_t head_dim : {641, 1024, 65536}) {
        problem = make_problem(2, 8, 16);
        problem.head_dim = head_dim;
        expect(HEED_INVALID_ARGUMENT, "head_dim is " + std::to_string(head_dim) + "; it must be 1..640");
        problem = make_problem(2, 8, 16);
        problem.head_dim_v = head_dim;
        expect(HEED_INVALID_ARGUMENT, "head_dim_v is " + std::to_string(head_dim) + "; it must be 1..640");
    }
    for (int32_t head_dim : {1, 3, 8, 33, 40, 46, 57, 59, 80, 96, 111, 120, 128, 160, 192, 256, 640}) {
        problem = make_problem(2, 8, 16);
        problem.head_dim = head_dim;
        problem.head_dim_v = 641 - head_dim;
        EXPECT_TRUE(make_plan(problem));
    }
}

TEST_F(Problem, Case09_Windows) {
    for (int32_t window : {-2, -3, std::numeric_limits<int32_t>::min()}) {
        problem = make_problem(2, 8, 16);
        problem.window_left = window;
        expect(HEED_INVALID_ARGUMENT, "window_left is " + std::to_string(window));
        problem = make_problem(2, 8, 16);
        problem.window_right = window;
        expect(HEED_INVALID_ARGUMENT, "window_right is " + std::to_string(window));
    }
    problem.window_left = int32_max;
    problem.window_right = 0;
    EXPECT_TRUE(make_plan(problem));
}

TEST_F(Problem, Scalars) {
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    for (float scale : {infinity, -infinity}) {
        problem.scale = scale;
        expect(HEED_INVALID_ARGUMENT, "scale is ");
    }
    for (float scale : {0.0f, -1.0f, nan, std::numeric_limits<float>::max()}) {
        problem.scale = scale;
        EXPECT_TRUE(make_plan(problem));
    }
    for (float softcap : {-1.0f, nan, infinity, -infinity}) {
        problem.softcap = softcap;
        expect(HEED_INVALID_ARGUMENT, "softcap is ");
    }
    problem.softcap = 0;
    for (float dropout : {-0.1f, 1.1f, nan, infinity}) {
        problem.dropout_p = dropout;
        expect(HEED_INVALID_ARGUMENT, "dropout_p is ");
    }
}

TEST_F(Problem, HugeDimensions) {
    problem = make_problem(int32_max, int32_max, 16, int32_max, 1);
    expect(HEED_INVALID_ARGUMENT, "beyond 2^63-1 elements");
    problem = make_problem(int32_max, 1, 1, 1, 1);
    expect(HEED_UNSUPPORTED, "2^31-1 elements");
    problem = make_problem(1, 1, int32_max, 1, 1, 1, 1);
    expect(HEED_UNSUPPORTED, "below 2^31");
    problem = make_problem(0, int32_max, int32_max, int32_max, 1);
    EXPECT_EQ(heed_plan_workspace_bytes(make_plan(problem).get()), 0u);
}

// The same keys for more sequences than their product with the keys' elements could be.
TEST_F(Problem, SharedKeys) {
    problem = make_problem(40000, 1, 1000, 2, 2);
    problem.k_layout = problem.v_layout = {{0, 128, 64, 1}};
    EXPECT_TRUE(make_plan(problem));
    problem.v_layout = {};
    EXPECT_TRUE(make_plan(problem)) << heed_last_error();  // more than 2^31-1 elements of v
}

// Pages bound the keys of a sequence, whatever max_kv_len says.
TEST_F(Problem, LongestSequenceOfPages) {
    problem = make_problem(2, 8, int32_max - 4096, 2, 2);
    problem.kv_storage = HEED_KV_PAGED;
    problem.has_kv_lens = true;
    problem.num_pages = problem.max_pages_per_seq = 4;
    problem.page_size = 16;
    for (problem.max_q_len = 1; problem.max_q_len < 10000; problem.max_q_len += 5000) EXPECT_TRUE(make_plan(problem));
}

TEST_F(Problem, WideViews) {
    problem = make_problem(1, 8, 3, 2, 2);
    for (int64_t reach : {int64_t{1} << 31, (int64_t{1} << 31) + 64, int64_t{1} << 32, int64_t{1} << 62}) {
        problem.k_layout = {{0, reach / 2, 64, 1}};
        EXPECT_TRUE(make_plan(problem)) << heed_last_error();
    }
    problem.k_layout = {{0, int64_max, 64, 1}};
    expect(HEED_INVALID_ARGUMENT, "k of [1, 3, 2, 64] elements reaches beyond 2^63-1");
    problem.k_layout = {{0, 500000000, 64, 1}};
    EXPECT_TRUE(make_plan(problem));
}

TEST_F(Problem, InputStrides) {
    problem.q_layout = {{4096, 512, 64, 2}};
    expect(HEED_UNSUPPORTED, "q_layout.stride[3] is 2");
    problem.q_layout = {{4096, 512, 64, 0}};
    expect(HEED_INVALID_ARGUMENT, "q_layout.stride[3] is 0 with other strides");
    for (int64_t stride : {int64_t{-1}, int64_t{-512}, int64_min}) {
        problem.q_layout = {{4096, stride, 64, 1}};
        expect(HEED_UNSUPPORTED, "q_layout.stride[1] is " + std::to_string(stride));
    }
    problem.q_layout = {{0, 0, 0, 1}};  // broadcast
    EXPECT_TRUE(make_plan(problem));
    problem = make_problem(1, 1, 16);
    problem.q_layout = {{-7, int64_max, 64, 1}};  // any stride on extent 1
    EXPECT_TRUE(make_plan(problem));
}

TEST_F(Problem, Case35_OutputsMayNotOverlapThemselves) {
    const heed_layout overlapping[] = {{{0, 256, 64, 1}},    {{2048, 0, 64, 1}},   {{2048, 256, 0, 1}},
                                       {{2048, 256, 63, 1}}, {{2048, 255, 64, 1}}, {{2047, 256, 64, 1}}};
    for (const heed_layout &layout : overlapping) {
        problem.out_layout = layout;
        expect(HEED_INVALID_ARGUMENT, "an output may not overlap itself");
    }
    problem.out_layout = {{2048, 64, 512, 1}};  // BHSD
    EXPECT_TRUE(make_plan(problem));
    problem.out_layout = {{4096, 300, 70, 1}};  // padded
    EXPECT_TRUE(make_plan(problem));
    problem.out_layout = {{0, 0, 0, 0}};
    problem.want_lse = true;
    problem.lse_layout = {{32, 4, 1, 1}};
    expect(HEED_INVALID_ARGUMENT, "lse_layout.stride[1] is 4");
    for (const heed_layout &layout :
         {heed_layout{{64, 16, 2, 1}}, heed_layout{{64, 16, 1, 0}}, heed_layout{{32, 1, 4, 1}}}) {
        problem.lse_layout = layout;
        EXPECT_TRUE(make_plan(problem));
    }
}

TEST_F(Problem, MaskShapes) {
    problem.has_mask = true;
    const int32_t good[][4] = {{0, 0, 0, 0}, {2, 4, 8, 16}, {1, 1, 8, 16}, {2, 1, 1, 16}, {2, 4, 8, 1}, {1, 1, 1, 1}};
    for (const auto &shape : good) {
        std::memcpy(problem.mask_shape, shape, sizeof(shape));
        EXPECT_TRUE(make_plan(problem));
    }
    const int32_t bad[][4] = {{3, 4, 8, 16}, {2, 2, 8, 16}, {2, 4, 7, 16}, {2, 4, 8, 15}, {-1, 4, 8, 16}};
    for (const auto &shape : bad) {
        std::memcpy(problem.mask_shape, shape, sizeof(shape));
        expect(HEED_INVALID_ARGUMENT, "or 0 for that extent");
    }
    problem = make_problem(2, 8, 16);
    problem.has_bias = true;
    problem.bias_shape[3] = 17;
    expect(HEED_INVALID_ARGUMENT, "bias_shape[3] is 17; it must be 1, 16 or 0");
}

TEST_F(Problem, StoragesTypesAndModifiersAreServed) {
    const std::pair<const char *, void (*)(heed_problem &)> cases[] = {
        {"varlen queries", [](heed_problem &p) { p.q_storage = HEED_Q_VARLEN; }},
        {"varlen", [](heed_problem &p) { p.q_storage = HEED_Q_VARLEN, p.kv_storage = HEED_KV_VARLEN; }},
        {"paged",
         [](heed_problem &p) {
             p.kv_storage = HEED_KV_PAGED;
             p.has_kv_lens = true;
             p.num_pages = p.page_size = 16;
         }},
        {"int8", [](heed_problem &p) { p.kv_dtype = HEED_I8; }},
        {"f16", [](heed_problem &p) { p.dtype = p.kv_dtype = HEED_F16; }},
        {"bf16", [](heed_problem &p) { p.dtype = p.kv_dtype = p.bias_dtype = HEED_BF16, p.has_bias = true; }},
        {"softcap", [](heed_problem &p) { p.softcap = 30; }},
        {"sink", [](heed_problem &p) { p.has_sink = true; }},
        {"alibi", [](heed_problem &p) { p.has_alibi = true; }},
        {"dropout", [](heed_problem &p) { p.dropout_p = 1; }},
    };
    for (const auto &[name, change] : cases) {
        problem = make_problem(2, 8, 16);
        change(problem);
        EXPECT_TRUE(make_plan(problem)) << name;
    }
    const auto expect_served = [&](const char *name, auto heed_problem::*field, double most) {
        problem = make_problem(2, 8, 16);
        problem.has_mask = problem.has_alibi = true;
        EXPECT_TRUE(set_field(&(problem.*field), most) && make_plan(problem)) << name;
    };
#define HEED_SERVE(name, initial, least, most, allowed) expect_served(#name, &heed_problem::name, most);
    HEED_LOGIT_FIELDS(HEED_SERVE)
#undef HEED_SERVE
}

// This program's table has no CUDA kernels.
TEST_F(Problem, NoCudaKernels) {
    problem.metadata_on_device = true;
    expect(HEED_INVALID_ARGUMENT, "metadata_on_device is 1 with HEED_CPU");
    problem.device = HEED_CUDA;
    expect(HEED_NO_DEVICE, "device is HEED_CUDA; this program's kernel library has no CUDA kernels");
    EXPECT_TRUE(make_plan(make_problem(2, 8, 16)));  // the next CPU call is fine
}

TEST_F(Problem, WorkspaceDependsOnThreadsNotOnLengths) {
    problem.max_threads = 1;
    const size_t one = heed_plan_workspace_bytes(make_plan(problem).get());
    problem.has_kv_lens = true;
    EXPECT_EQ(heed_plan_workspace_bytes(make_plan(problem).get()), one);
    problem.max_threads = 3;
    EXPECT_GE(heed_plan_workspace_bytes(make_plan(problem).get()), one + 2 * stub::scratch_per_thread);
    problem.max_threads = 1025;
    expect(HEED_INVALID_ARGUMENT, "max_threads is 1025");
    problem.max_threads = 0;
    EXPECT_TRUE(make_plan(problem));
}

}  // namespace
