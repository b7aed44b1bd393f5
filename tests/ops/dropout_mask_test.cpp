// heed_dropout_mask against a scalar Philox4x32-10 that is checked with its authors' own vectors.
#include <sys/mman.h>

#include <cmath>

#include "runtime/halide_bridge.h"
#include "tests/ops/tensor.h"

namespace heed_test::ops {
namespace {

struct Counter {
    uint32_t word[4];
};

Counter philox(Counter c, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = uint64_t{0xD2511F53} * c.word[0], p1 = uint64_t{0xCD9E8D57} * c.word[2];
        c = {{static_cast<uint32_t>(p1 >> 32) ^ c.word[1] ^ key0, static_cast<uint32_t>(p1),
              static_cast<uint32_t>(p0 >> 32) ^ c.word[3] ^ key1, static_cast<uint32_t>(p0)}};
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
    return c;
}

bool kept(uint64_t e, float p, uint64_t seed, uint64_t offset) {
    const uint64_t counter = e >> 2;
    const Counter words = philox({{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                                   static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)}},
                                 static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    const auto threshold = static_cast<uint64_t>(std::llround(static_cast<double>(p) * 4294967296.0));
    return words.word[e & 3] >= threshold;
}

TEST(Philox, KnownAnswers) {
    const auto expect = [](Counter in, uint32_t key0, uint32_t key1, Counter out) {
        const Counter got = philox(in, key0, key1);
        for (int i = 0; i < 4; i++) EXPECT_EQ(got.word[i], out.word[i]);
    };
    expect({{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
    const uint32_t ones = 0xffffffff;
    expect({{ones, ones, ones, ones}}, ones, ones, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
    expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
           {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

heed_problem mask_problem(int32_t batch, int32_t num_heads, int32_t q_len, int32_t kv_len, float p) {
    heed_problem problem;
    heed_problem_init(&problem);
    problem.batch = batch;
    problem.num_heads = num_heads;
    problem.num_kv_heads = num_heads;
    problem.head_dim = problem.head_dim_v = 64;
    problem.max_q_len = q_len;
    problem.max_kv_len = kv_len;
    problem.dropout_p = p;
    return problem;
}

// A mask of the shape, layout in the order [batch, num_heads, max_q_len, max_kv_len].
Tensor mask_tensor(const heed_problem &p, Layout layout = Layout::packed, Flush flush = Flush::rear) {
    return Tensor(HEED_U8, {p.batch, p.num_heads, p.max_q_len, p.max_kv_len}, layout, flush);
}

void expect_mask(const heed_problem &p, uint64_t seed, uint64_t offset, const Tensor &mask) {
    mask.for_each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
        const int64_t e = ((b * p.num_heads + h) * p.max_q_len + i) * p.max_kv_len + j;
        ASSERT_EQ(mask.at<uint8_t>(b, h, i, j), kept(static_cast<uint64_t>(e), p.dropout_p, seed, offset))
            << b << " " << h << " " << i << " " << j;
    });
    EXPECT_TRUE(mask.gaps_intact());
}

class DropoutMaskTest : public OpTest {};
std::vector<OpCase> mask_cases() {
    std::vector<OpCase> cases;
    for (const heed::KernelTarget target : op_targets()) cases.push_back({HEED_U8, target});
    return cases;
}
std::string mask_case_name(const testing::TestParamInfo<OpCase> &tested) { return isa_name(tested.param.target.value); }
INSTANTIATE_TEST_SUITE_P(Ops, DropoutMaskTest, testing::ValuesIn(mask_cases()), mask_case_name);

TEST_P(DropoutMaskTest, MatchesTheScalarGenerator) {
    expect_kernel(heed::Op::dropout_mask, HEED_U8, HEED_U8);
    for (const int32_t kv_len : {1, 2, 3, 5, 31, 64, 255, 256, 257, 259, 1000}) {
        for (const Layout layout : {Layout::packed, Layout::padded, Layout::bhsd}) {
            const heed_problem p = mask_problem(2, 3, 7, kv_len, 0.3f);
            const Tensor mask = mask_tensor(p, layout, kv_len % 2 == 0 ? Flush::front : Flush::rear);
            const heed_tensor keep = mask.tensor();
            ASSERT_EQ(heed_dropout_mask(&p, 0x0123456789abcdefu, 0xfedcba9876543210u, &keep, &mask.layout, nullptr),
                      HEED_OK)
                << heed_last_error();
            expect_mask(p, 0x0123456789abcdefu, 0xfedcba9876543210u, mask);
        }
    }
}

TEST_P(DropoutMaskTest, RowsLongerThanABlock) {
    const heed_problem p = mask_problem(1, 2, 3, 40001, 0.5f);
    const Tensor mask = mask_tensor(p);
    const heed_tensor keep = mask.tensor();
    std::vector<unsigned char> first;
    for (const int32_t threads : {1, 2, 3, 0}) {
        heed_execution execution = {};
        execution.num_threads = threads;
        std::memset(keep.data, 0xff, static_cast<size_t>(keep.size));
        ASSERT_EQ(heed_dropout_mask(&p, 7, 9, &keep, nullptr, &execution), HEED_OK) << heed_last_error();
        if (first.empty()) first = mask.bytes();
        EXPECT_EQ(mask.bytes(), first);
    }
    expect_mask(p, 7, 9, mask);
}

// Seed 2^64 - 1, offset 2^63, element indices around and beyond 2^32, straight from the kernel: all elements up to
// there would take minutes.
TEST_P(DropoutMaskTest, Case43_IndicesBeyond32Bits) {
    const uint64_t seed = ~uint64_t{0}, offset = uint64_t{1} << 63;
    const heed::OpKernel *kernel = nullptr;
    ASSERT_EQ(heed::find_op_kernel(heed::Op::dropout_mask, HEED_U8, HEED_U8, &kernel), HEED_OK);
    for (const uint64_t first : {(uint64_t{1} << 32) - 133, (uint64_t{1} << 34) - 7, (uint64_t{1} << 62) + 3}) {
        const Tensor mask(HEED_U8, {1, 1, 3, 301});
        heed::DropoutMaskArguments arguments;
        arguments.seed = seed;
        arguments.offset = offset;
        arguments.first = first;
        arguments.row_length = (uint64_t{1} << 33) + 1;
        arguments.threshold = uint64_t{1} << 30;
        arguments.keep = {mask.tensor().data, HEED_U8, 2, {301, 3}, {1, 301}};
        char message[512] = "";
        ASSERT_EQ(heed::call_op_kernel(*kernel, arguments, message), 0) << message;
        mask.for_each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
            const uint64_t e = first + static_cast<uint64_t>(i) * arguments.row_length + static_cast<uint64_t>(j);
            ASSERT_EQ(mask.at<uint8_t>(b, h, i, j), kept(e, 0.25f, seed, offset));
        });
    }
}

TEST_P(DropoutMaskTest, StridesBeyond32Bits) {
    const heed_problem p = mask_problem(1, 1, 2, 300, 0.5f);
    const int64_t stride = int64_t{1} << 33;
    const auto bytes = static_cast<size_t>(stride) + 300;
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    const heed_tensor keep = {memory, stride + 300, HEED_U8};
    const heed_layout layout = {{0, 0, stride, 1}};
    ASSERT_EQ(heed_dropout_mask(&p, 1, 2, &keep, &layout, nullptr), HEED_OK) << heed_last_error();
    for (int64_t e = 0; e < 600; e++) {
        ASSERT_EQ(static_cast<uint8_t *>(memory)[e / 300 * stride + e % 300],
                  kept(static_cast<uint64_t>(e), 0.5f, 1, 2));
    }
    munmap(memory, bytes);
}

TEST_P(DropoutMaskTest, Case55_ProbabilityZeroAndOne) {
    for (const float probability : {0.0f, 1.0f, 0x1p-32f, 0x1p-33f, 1.0f - 0x1p-24f}) {
        const heed_problem p = mask_problem(1, 2, 64, 100, probability);
        const Tensor mask = mask_tensor(p);
        const heed_tensor keep = mask.tensor();
        ASSERT_EQ(heed_dropout_mask(&p, 1, 2, &keep, nullptr, nullptr), HEED_OK) << heed_last_error();
        expect_mask(p, 1, 2, mask);
        mask.for_each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
            if (probability == 0 || probability == 1) {
                ASSERT_EQ(mask.at<uint8_t>(b, h, i, j), probability == 0 ? 1 : 0);
            }
        });
    }
}

TEST(DropoutMask, EmptyProblemsTakeNull) {
    const heed_tensor none = {nullptr, 0, HEED_U8};
    for (const heed_problem &p :
         {mask_problem(0, 2, 3, 4, 0.5f), mask_problem(1, 2, 0, 4, 0.5f), mask_problem(1, 2, 3, 0, 0.5f)}) {
        EXPECT_EQ(heed_dropout_mask(&p, 1, 2, &none, nullptr, nullptr), HEED_OK) << heed_last_error();
    }
}

TEST(DropoutMask, ErrorsNameTheFieldAndWriteNothing) {
    const heed_status invalid = HEED_INVALID_ARGUMENT;
    struct Arguments {
        heed_problem problem;
        heed_tensor keep;
        heed_layout layout;
        heed_execution execution;
    };
    struct Case {
        const char *field;
        heed_status status;
        void (*spoil)(Arguments &);
    };
    const Case cases[] = {
        {"struct_size", invalid, [](Arguments &a) { a.problem.struct_size = 0; }},
        {"dropout_p", invalid, [](Arguments &a) { a.problem.dropout_p = -0.1f; }},
        {"dropout_p", invalid, [](Arguments &a) { a.problem.dropout_p = 1.1f; }},
        {"dropout_p", invalid, [](Arguments &a) { a.problem.dropout_p = NAN; }},
        {"batch is -1", invalid, [](Arguments &a) { a.problem.batch = -1; }},
        {"keep is NULL", invalid, [](Arguments &a) { a.keep.data = nullptr; }},
        {"keep.size", invalid, [](Arguments &a) { a.keep.size--; }},
        {"keep.dtype", invalid, [](Arguments &a) { a.keep.dtype = HEED_F32; }},
        {"keep_layout.stride", invalid,
         [](Arguments &a) {
             a.layout = {{0, 40, 10, 1}};
         }},
        {"keep_layout.stride[3]", HEED_UNSUPPORTED,
         [](Arguments &a) {
             a.layout = {{160, 80, 20, 2}};
         }},
        {"num_threads", invalid, [](Arguments &a) { a.execution.num_threads = -4; }},
        {"device", HEED_NO_DEVICE, [](Arguments &a) { a.execution.device = HEED_CUDA; }},
        {"2^63", invalid,
         [](Arguments &a) {
             a.problem.batch = a.problem.num_heads = a.problem.num_kv_heads = a.problem.max_q_len = INT32_MAX;
         }},
    };
    for (const Case &c : cases) {
        const heed_problem p = mask_problem(2, 2, 4, 10, 0.5f);
        const Tensor mask = mask_tensor(p);
        Arguments a = {p, mask.tensor(), {}, {}};
        c.spoil(a);
        EXPECT_FAILS(heed_dropout_mask(&a.problem, 1, 2, &a.keep, &a.layout, &a.execution), c.status, c.field);
        const auto bytes = mask.bytes();
        EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](unsigned char x) { return x == 0xff; })) << c.field;
    }
    EXPECT_FAILS(heed_dropout_mask(nullptr, 1, 2, nullptr, nullptr, nullptr), invalid, "problem is NULL");
}

}  // namespace
}  // namespace heed_test::ops
