// Numbered cases of appends, each of which some library got wrong, and every refusal: nothing is written.
#include <atomic>
#include <functional>
#include <thread>

#include "tests/ops/cache.h"

namespace heed_test::ops {
namespace {

constexpr heed_status invalid = HEED_INVALID_ARGUMENT;

struct Refusal {
    const char *field;
    heed_status status;
    std::function<void(Cache &, Append &)> spoil;
};

// An append of `new_len` tokens to a cache of the kind, spoilt one way after the other.
void expect_refusals(const CacheShape &shape, heed_dtype dtype, const std::vector<Refusal> &refusals) {
    for (const Refusal &refusal : refusals) {
        Cache cache(shape);
        cache.kv_lens = {7, 0};
        Append append(&cache, dtype, 3);
        append.add_rope(32, 50, false);
        refusal.spoil(cache, append);
        const auto before = cache.contents();
        EXPECT_FAILS(heed_kv_append(&append.args), refusal.status, refusal.field);
        EXPECT_EQ(cache.contents(), before) << refusal.field;
    }
}

CacheShape paged_shape() {
    CacheShape shape;
    shape.paged = true;
    return shape;
}

// The second sequence's first token is in page_table[1][0], the first one's tokens 7, 8, 9 in pages 0 and 1.
TEST(Ops, Case44_AppendPageIds) {
    for (const int32_t bad : {-1, 14, 15, INT32_MIN, INT32_MAX}) {
        expect_refusals(paged_shape(), HEED_F32,
                        {{"cache.page_table[0][1]", invalid, [bad](Cache &c, Append &) { c.page(0, 1) = bad; }},
                         {"cache.page_table[1][0]", invalid, [bad](Cache &c, Append &) { c.page(1, 0) = bad; }}});
    }
}

TEST(Ops, Case45_AppendIgnoresEntriesThatItDoesNotTouch) {
    Cache cache(paged_shape());
    cache.kv_lens = {8, 0};
    cache.page(0, 0) = 0x7fffffff;  // full, not written
    for (const int32_t i : {2, 3, 4}) cache.page(0, i) = cache.page(1, i - 1) = -7;
    Append append(&cache, HEED_F32, 3);
    EXPECT_EQ(heed_kv_append(&append.args), HEED_OK) << heed_last_error();
    EXPECT_EQ(cache.kv_lens, std::vector<int32_t>({11, 3}));
}

TEST(Ops, Case46_AppendToTheCapacityAndBeyond) {
    for (const bool paged : {false, true}) {
        CacheShape shape;
        shape.paged = paged;
        Cache cache(shape);
        cache.kv_lens = {37, 0};
        Append append(&cache, HEED_F32, 3);
        EXPECT_EQ(heed_kv_append(&append.args), HEED_OK) << heed_last_error();
        EXPECT_EQ(cache.kv_lens, std::vector<int32_t>({40, 3}));
        const auto before = cache.contents();
        const int32_t one_more[] = {1, 0};
        append.args.new_lens = one_more;
        EXPECT_FAILS(heed_kv_append(&append.args), invalid, "cache.kv_lens[0] is 40");
        EXPECT_EQ(cache.contents(), before);
        const int32_t none[] = {0, 0};
        append.args.new_lens = none;
        EXPECT_EQ(heed_kv_append(&append.args), HEED_OK) << heed_last_error();
        EXPECT_EQ(cache.contents(), before);
    }
}

TEST(Ops, Case50_AppendLengths) {
    static const int32_t negative[] = {3, -1}, beyond[] = {4, 3};
    for (const CacheShape &shape : {CacheShape(), paged_shape()}) {
        expect_refusals(
            shape, HEED_F32,
            {{"cache.kv_lens[1] is -1", invalid, [](Cache &c, Append &) { c.kv_lens[1] = -1; }},
             {"cache.kv_lens[0] is -2147483648", invalid, [](Cache &c, Append &) { c.kv_lens[0] = INT32_MIN; }},
             {"cache.kv_lens[0] is 2147483647", invalid, [](Cache &c, Append &) { c.kv_lens[0] = INT32_MAX; }},
             {"cache.kv_lens[1] is 41", invalid, [](Cache &c, Append &) { c.kv_lens[1] = 41; }},
             {"cache.kv_lens[1] is 38", invalid, [](Cache &c, Append &) { c.kv_lens[1] = 38; }},
             {"new_lens[1] is -1", invalid, [](Cache &, Append &a) { a.args.new_lens = negative; }},
             {"new_lens[0] is 4", invalid, [](Cache &, Append &a) { a.args.new_lens = beyond; }}});
    }
}

// Kernels read positions with plain loads and clamp them: a race, by contract, that ThreadSanitizer need not report.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HEED_TEST_WITH_TSAN 1
#endif
#endif
#ifdef HEED_TEST_WITH_TSAN
constexpr bool races_with_kernels = false;
#else
constexpr bool races_with_kernels = true;
#endif

// A thread fills the page table and the positions with anything while calls run; the pool is between guard pages.
TEST(Ops, Case51_AppendWhileMetadataChanges) {
    Cache cache(paged_shape());
    Append append(&cache, HEED_F32, 3);
    append.add_rope(32, 50, false);
    std::vector<int32_t> positions(6, 0);
    append.rope.positions = positions.data();
    std::atomic<bool> stop{false};
    std::thread writer([&] {
        Rng rng(1);
        const auto scribble = [&](std::vector<int32_t> &values, int32_t below) {
            const auto at = static_cast<size_t>(rng.below(static_cast<int32_t>(values.size())));
            const int32_t value = rng.below(4) == 0 ? static_cast<int32_t>(rng.bits()) : rng.below(below);
            __atomic_store_n(&values[at], value, __ATOMIC_RELAXED);
        };
        while (!stop) {
            scribble(cache.page_table, 14);
            if (races_with_kernels) scribble(positions, 50);
        }
    });
    int32_t good = 0;
    for (int i = 0; i < 5000; i++) {
        cache.kv_lens = {i % 37, i % 5};
        good += heed_kv_append(&append.args) == HEED_OK ? 1 : 0;
    }
    stop = true;
    writer.join();
    EXPECT_TRUE(cache.k.slack_intact());
    EXPECT_TRUE(cache.v.slack_intact());
    RecordProperty("calls_that_ran", good);
}

TEST(Ops, Case52_AppendRopePositions) {
    static const int32_t negative[] = {0, 1, 2, 3, -1, 5}, beyond[] = {0, 1, 50, 3, 4, 5};
    expect_refusals(CacheShape(), HEED_F32,
                    {{"rope.positions[1][1] is -1", invalid, [](Cache &, Append &a) { a.rope.positions = negative; }},
                     {"rope.positions[0][2] is 50", invalid, [](Cache &, Append &a) { a.rope.positions = beyond; }},
                     {"rope.max_position is 9", invalid, [](Cache &, Append &a) {
                          a.rope.max_position = 9;
                          a.rope.cos.size = a.rope.sin.size = 9 * 16;
                      }}});
    // Positions of tokens that are not appended are not looked at.
    Cache cache((CacheShape()));
    Append append(&cache, HEED_F32, 3);
    append.add_rope(32, 50, false);
    append.rope.positions = negative;
    const int32_t new_lens[] = {3, 1};
    append.args.new_lens = new_lens;
    EXPECT_EQ(heed_kv_append(&append.args), HEED_OK) << heed_last_error();
}

TEST(Ops, Case54_AppendAliases) {
    for (const CacheShape &shape : {CacheShape(), paged_shape()}) {
        expect_refusals(
            shape, HEED_F32,
            {{"cache.k overlaps k_new", invalid,  // a source that is its own destination
              [](Cache &c, Append &a) {
                  const auto [block, slot] = c.slot(0, 7);
                  a.args.k_new.data = &c.k.at<float>(block, slot, 0, 0);
              }},
             {"cache.k overlaps k_new", invalid,  // one element into the pool
              [](Cache &c, Append &a) { a.args.k_new.data = &c.k.at<float>(0, 0, 0, 0) - a.k_new.count() + 1; }},
             {"cache.v overlaps v_new", invalid,  // another page
              [](Cache &c, Append &a) { a.args.v_new.data = &c.v.at<float>(1, 3, 0, 0); }},
             {"cache.k overlaps v_new", invalid,
              [](Cache &c, Append &a) { a.args.v_new.data = &c.k.at<float>(1, 3, 0, 0); }},
             {"cache.k overlaps cache.v", invalid,
              [](Cache &, Append &a) { a.args.cache.v.data = a.args.cache.k.data; }},
             {"execution.workspace overlaps k_new", invalid,
              [](Cache &, Append &a) {
                  a.args.execution.workspace = a.args.k_new.data;
                  a.args.execution.workspace_bytes = 8;
              }},
             {"cache.kv_lens overlaps new_lens", invalid,
              [](Cache &c, Append &a) { a.args.new_lens = c.kv_lens.data(); }},
             {"cache.k overlaps cache.kv_lens", invalid,
              [](Cache &c, Append &a) { a.args.cache.kv_lens = &c.k.at<int32_t>(0, 0, 0, 0); }},
             {"cache.v overlaps rope.cos", invalid,
              [](Cache &c, Append &a) { a.rope.cos.data = &c.v.at<float>(0, 0, 0, 0); }}});
    }
}

TEST(Ops, AppendOfTwoTokensToOneSlot) {
    expect_refusals(paged_shape(), HEED_F32,
                    {{"two tokens", invalid,  // token 8 of sequence 0 and token 0 of sequence 1
                      [](Cache &c, Append &) { c.page(1, 0) = c.page(0, 1); }},
                     {"two tokens", invalid,  // one sequence, one page twice
                      [](Cache &c, Append &a) {
                          static const int32_t new_lens[] = {3, 0};
                          a.args.new_lens = new_lens;
                          c.shape.page_size = 1;
                          a.args.cache.page_size = 1;
                          a.args.cache.max_pages_per_seq = 10;
                          a.args.cache.batch = 1;
                          c.page_table = {0, 1, 2, 3, 4, 5, 6, 9, 8, 9};
                          a.args.cache.page_table = c.page_table.data();
                      }}});
    // One page in two sequences, different slots: fine.
    Cache cache(paged_shape());
    cache.kv_lens = {5, 0};
    cache.page(1, 0) = cache.page(0, 0);
    Append append(&cache, HEED_F32, 3);
    EXPECT_EQ(heed_kv_append(&append.args), HEED_OK) << heed_last_error();
}

TEST(Ops, AppendErrorsNameTheField) {
    CacheShape int8;
    int8.dtype = HEED_I8;
    for (const CacheShape &shape : {CacheShape(), paged_shape(), int8}) {
        expect_refusals(
            shape, HEED_F32,
            {{"struct_size is 0", invalid, [](Cache &, Append &a) { a.args.struct_size = 0; }},
             {"dtype is i8 (3)", invalid, [](Cache &, Append &a) { a.args.dtype = HEED_I8; }},
             {"cache.dtype is u8 (4)", invalid, [](Cache &, Append &a) { a.args.cache.dtype = HEED_U8; }},
             {"cache.dtype is bf16", invalid, [](Cache &, Append &a) { a.args.cache.dtype = HEED_BF16; }},
             {"cache.storage is 1", invalid, [](Cache &, Append &a) { a.args.cache.storage = HEED_KV_VARLEN; }},
             {"new_len is -1", invalid, [](Cache &, Append &a) { a.args.new_len = -1; }},
             {"cache.batch is -1", invalid, [](Cache &, Append &a) { a.args.cache.batch = -1; }},
             {"cache.num_kv_heads is 0", invalid, [](Cache &, Append &a) { a.args.cache.num_kv_heads = 0; }},
             {"cache.head_dim is 0", invalid, [](Cache &, Append &a) { a.args.cache.head_dim = 0; }},
             {"cache.head_dim_v is 641; it must be 1..640", HEED_INVALID_ARGUMENT,
              [](Cache &, Append &a) { a.args.cache.head_dim_v = 641; }},
             {"k_new is NULL", invalid, [](Cache &, Append &a) { a.args.k_new.data = nullptr; }},
             {"v_new.size", invalid, [](Cache &, Append &a) { a.args.v_new.size--; }},
             {"k_new.dtype", invalid, [](Cache &, Append &a) { a.args.k_new.dtype = HEED_F16; }},
             {"k_new_layout.stride[3]", HEED_UNSUPPORTED,
              [](Cache &, Append &a) {
                  a.args.k_new_layout = {{384, 128, 64, 2}};
              }},
             {"cache.k is NULL", invalid, [](Cache &, Append &a) { a.args.cache.k.data = nullptr; }},
             {"cache.v.size", invalid, [](Cache &, Append &a) { a.args.cache.v.size--; }},
             {"cache.k_layout.stride", invalid,
              [](Cache &, Append &a) {
                  a.args.cache.k_layout = {{5120, 64, 32, 1}};
              }},
             {"cache.kv_lens is NULL", invalid, [](Cache &, Append &a) { a.args.cache.kv_lens = nullptr; }},
             {"rope.rotary_dim is 66", invalid, [](Cache &, Append &a) { a.rope.rotary_dim = 66; }},
             {"rope.rotary_dim is 31", invalid, [](Cache &, Append &a) { a.rope.rotary_dim = 31; }},
             {"rope.cos is NULL", invalid, [](Cache &, Append &a) { a.rope.cos.data = nullptr; }},
             {"rope.sin.size", invalid, [](Cache &, Append &a) { a.rope.sin.size--; }},
             {"num_threads", invalid, [](Cache &, Append &a) { a.args.execution.num_threads = 5000; }},
             {"device", HEED_NO_DEVICE, [](Cache &, Append &a) { a.args.execution.device = HEED_CUDA; }}});
    }
    expect_refusals(CacheShape(), HEED_F32,
                    {{"cache.capacity is -1", invalid, [](Cache &, Append &a) { a.args.cache.capacity = -1; }}});
    expect_refusals(
        paged_shape(), HEED_F32,
        {{"cache.page_size is 0", invalid, [](Cache &, Append &a) { a.args.cache.page_size = 0; }},
         {"cache.num_pages is -1", invalid, [](Cache &, Append &a) { a.args.cache.num_pages = -1; }},
         {"cache.max_pages_per_seq is -2", invalid, [](Cache &, Append &a) { a.args.cache.max_pages_per_seq = -2; }},
         {"cache.page_table is NULL", invalid, [](Cache &, Append &a) { a.args.cache.page_table = nullptr; }}});
    expect_refusals(
        int8, HEED_F32,
        {{"cache.k_scale is NULL", invalid, [](Cache &, Append &a) { a.args.cache.k_scale.data = nullptr; }},
         {"cache.v_scale.size", invalid, [](Cache &, Append &a) { a.args.cache.v_scale.size--; }},
         {"cache.k_scale.dtype", invalid, [](Cache &, Append &a) { a.args.cache.k_scale.dtype = HEED_I8; }}});
    EXPECT_FAILS(heed_kv_append(nullptr), invalid, "args is NULL");
}

TEST(Ops, EmptyAppendsTakeNull) {
    heed_kv_append_args args = {};
    args.struct_size = sizeof(args);
    args.cache.num_kv_heads = args.cache.head_dim = args.cache.head_dim_v = 1;
    args.new_len = 5;
    EXPECT_EQ(heed_kv_append(&args), HEED_OK) << heed_last_error();
    args.cache.storage = HEED_KV_PAGED;
    args.cache.page_size = 16;
    EXPECT_EQ(heed_kv_append(&args), HEED_OK) << heed_last_error();
    int32_t kv_len = 0;
    args.cache.batch = 1;
    args.cache.kv_lens = &kv_len;
    args.new_len = 0;
    EXPECT_EQ(heed_kv_append(&args), HEED_OK) << heed_last_error();
}

}  // namespace
}  // namespace heed_test::ops
