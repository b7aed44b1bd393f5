// heed_kv_copy: sources are read as they were before the call, whatever the ranges do to one another.
#include <algorithm>

#include "tests/ops/cache.h"
#include "tests/ops/device_call.h"

namespace heed_test::ops {
namespace {

// A cache full of different bytes.
struct FilledCache : Cache {
    explicit FilledCache(const CacheShape &shape, uint64_t seed = 3) : Cache(shape) {
        Rng rng(seed);
        for (const Tensor *tensor : planes()) {
            tensor->for_each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
                unsigned char *at = element(*tensor, a, b, c, d);
                for (int64_t i = 0; i < element_bytes(tensor->dtype()); i++) {
                    at[i] = static_cast<unsigned char>(rng.bits());
                }
            });
        }
    }
    std::vector<const Tensor *> planes() const {
        if (shape.dtype == HEED_I8) return {&k, &v, &k_scale, &v_scale};
        return {&k, &v};
    }
    static unsigned char *element(const Tensor &tensor, int64_t a, int64_t b, int64_t c, int64_t d) {
        return static_cast<unsigned char *>(tensor.tensor().data) +
               tensor.offset(a, b, c, d) * element_bytes(tensor.dtype());
    }
};

// What the ranges must leave, from copies of all bytes made before.
void expect_copied(const FilledCache &cache, const FilledCache &before, const std::vector<heed_kv_range> &ranges) {
    for (size_t p = 0; p < cache.planes().size(); p++) {
        const Tensor &now = *cache.planes()[p], &old = *before.planes()[p];
        std::vector<unsigned char> want = old.bytes();
        const auto size = static_cast<size_t>(element_bytes(old.dtype()));
        for (const heed_kv_range &r : ranges) {
            for (int32_t t = r.begin; t < r.begin + r.count; t++) {
                for (int64_t h = 0; h < old.extents()[2]; h++) {
                    for (int64_t d = 0; d < old.extents()[3]; d++) {
                        std::memcpy(want.data() + static_cast<size_t>(old.offset(r.to, t, h, d)) * size,
                                    FilledCache::element(old, r.from, t, h, d), size);
                    }
                }
            }
        }
        ASSERT_EQ(now.bytes(), want) << "plane " << p;
        EXPECT_TRUE(now.slack_intact());
    }
}

std::vector<CacheShape> shapes() {
    std::vector<CacheShape> shapes;
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16, HEED_I8}) {
        for (const bool paged : {false, true}) {
            for (const Layout layout : {Layout::packed, Layout::bhsd, Layout::padded}) {
                CacheShape shape;
                shape.dtype = dtype;
                shape.paged = paged;
                shape.batch = 6;
                shape.layout = layout;
                shape.flush = layout == Layout::bhsd ? Flush::front : Flush::rear;
                shapes.push_back(shape);
            }
        }
    }
    return shapes;
}

void expect_copies(const CacheShape &shape, const std::vector<heed_kv_range> &ranges) {
    for (const int32_t threads : {1, 3}) {
        const FilledCache before(shape);
        FilledCache cache(shape);
        const heed_kv_view view = cache.view();
        heed_execution execution = {};
        execution.num_threads = threads;
        ASSERT_EQ(call_kv_copy(&view, ranges.data(), static_cast<int32_t>(ranges.size()), &execution), HEED_OK)
            << heed_last_error();
        expect_copied(cache, before, ranges);
        EXPECT_EQ(cache.kv_lens, before.kv_lens);
    }
}

TEST(Copy, RangesThatKeepApart) {
    for (const CacheShape &shape : shapes())
        expect_copies(shape, {{0, 1, 0, 8}, {0, 2, 3, 5}, {3, 4, 0, 1}, {3, 5, 7, 0}});
}

TEST(Copy, Chains) {
    for (const CacheShape &shape : shapes()) {
        expect_copies(shape, {{0, 1, 0, 8}, {1, 2, 0, 8}, {2, 3, 2, 4}});  // a to b, b to c
        expect_copies(shape, {{2, 3, 2, 4}, {1, 2, 0, 8}, {0, 1, 0, 8}});
        expect_copies(shape, {{0, 1, 0, 4}, {1, 2, 3, 5}, {0, 2, 0, 3}});  // partly
    }
}

TEST(Copy, Cycles) {
    for (const CacheShape &shape : shapes()) {
        expect_copies(shape, {{0, 1, 0, 8}, {1, 0, 0, 8}});
        expect_copies(shape, {{0, 1, 0, 8}, {1, 2, 1, 7}, {2, 0, 0, 6}, {1, 5, 0, 8}, {3, 3, 0, 8}});
    }
}

// A beam search over long sequences: every sequence takes the place of another, with more bytes than are saved at once.
TEST(Copy, LargePermutations) {
    CacheShape shape;
    shape.batch = 9;
    shape.capacity = 700;
    std::vector<heed_kv_range> ranges;
    for (int32_t b = 0; b < 9; b++) ranges.push_back({b, (b * 4 + 1) % 9, b, 690});
    expect_copies(shape, ranges);
}

TEST(Copy, RandomRanges) {
    Rng rng(17);
    for (int round = 0; round < 60; round++) {
        CacheShape shape;
        shape.batch = 8;
        shape.head_dim = shape.head_dim_v = 3;
        shape.dtype = round % 2 == 0 ? HEED_I8 : HEED_F16;
        std::vector<heed_kv_range> ranges;
        for (int32_t to = 0; to < shape.batch; to++) {
            for (int32_t begin = rng.below(9); begin < shape.capacity;) {
                const int32_t count = std::min(rng.below(12), shape.capacity - begin);
                ranges.push_back({rng.below(shape.batch), to, begin, count});
                begin += count + rng.below(3) + 1;
            }
        }
        for (size_t i = ranges.size(); i > 1; i--) {
            std::swap(ranges[i - 1], ranges[static_cast<size_t>(rng.below(static_cast<int32_t>(i)))]);
        }
        expect_copies(shape, ranges);
    }
}

TEST(Copy, EmptyCopies) {
    FilledCache cache((CacheShape()));
    heed_kv_view view = cache.view();
    const auto before = cache.contents();
    EXPECT_EQ(call_kv_copy(&view, nullptr, 0, nullptr), HEED_OK) << heed_last_error();
    const heed_kv_range none = {0, 1, 40, 0};
    EXPECT_EQ(call_kv_copy(&view, &none, 1, nullptr), HEED_OK) << heed_last_error();
    view.page_table = nullptr;
    view.kv_lens = nullptr;  // the caller's, not used
    EXPECT_EQ(call_kv_copy(&view, &none, 1, nullptr), HEED_OK) << heed_last_error();
    EXPECT_EQ(cache.contents(), before);
}

TEST(Copy, ErrorsNameTheFieldAndWriteNothing) {
    FOR_THE_CPU();
    const heed_status invalid = HEED_INVALID_ARGUMENT;
    struct Case {
        const char *field;
        heed_status status;
        std::vector<heed_kv_range> ranges;
    };
    const heed_kv_range good = {1, 0, 0, 8};
    const Case cases[] = {
        {"ranges[1].from is -1", invalid, {good, {-1, 1, 0, 1}}},
        {"ranges[1].from is 14", invalid, {good, {14, 1, 0, 1}}},
        {"ranges[1].to is 2147483647", invalid, {good, {2, INT32_MAX, 0, 1}}},
        {"ranges[1].to is -2147483648", invalid, {good, {2, INT32_MIN, 0, 0}}},
        {"ranges[1].begin is -1", invalid, {good, {2, 3, -1, 1}}},
        {"ranges[1].begin is 9", invalid, {good, {2, 3, 9, 0}}},
        {"ranges[1].count is -1", invalid, {good, {2, 3, 1, -1}}},
        {"ranges[1].count is 8", invalid, {good, {2, 3, 1, 8}}},
        {"ranges[1].count is 2147483647", invalid, {good, {2, 3, 1, INT32_MAX}}},
        {"two of them write token 7 of block 0", invalid, {good, {2, 0, 7, 1}}},
        {"two of them write token 0 of block 0", invalid, {good, good}},
        {"two of them write token 3 of block 0", invalid, {good, {0, 0, 3, 1}}},
    };
    CacheShape shape;
    shape.paged = true;
    for (const Case &c : cases) {
        FilledCache cache(shape);
        const heed_kv_view view = cache.view();
        const auto before = cache.contents();
        EXPECT_FAILS(call_kv_copy(&view, c.ranges.data(), static_cast<int32_t>(c.ranges.size()), nullptr), c.status,
                     c.field);
        EXPECT_EQ(cache.contents(), before) << c.field;
    }
}

TEST(Copy, ErrorsOfTheView) {
    FOR_THE_CPU();
    const heed_kv_range good = {1, 0, 0, 8};
    const auto expect = [&](heed_status status, const char *field, void (*spoil)(heed_kv_view &, heed_execution &)) {
        CacheShape shape;
        shape.dtype = HEED_I8;
        FilledCache cache(shape);
        heed_kv_view view = cache.view();
        heed_execution execution = {};
        spoil(view, execution);
        const auto before = cache.contents();
        EXPECT_FAILS(call_kv_copy(&view, &good, 1, &execution), status, field);
        EXPECT_EQ(cache.contents(), before) << field;
    };
    using View = heed_kv_view;
    using Execution = heed_execution;
    const heed_status invalid = HEED_INVALID_ARGUMENT;
    expect(invalid, "cache.storage", [](View &v, Execution &) { v.storage = HEED_KV_VARLEN; });
    expect(invalid, "cache.dtype", [](View &v, Execution &) { v.dtype = HEED_U8; });
    expect(invalid, "cache.k.dtype", [](View &v, Execution &) { v.k.dtype = HEED_F32; });
    expect(invalid, "cache.k is NULL", [](View &v, Execution &) { v.k.data = nullptr; });
    expect(invalid, "cache.v_scale is NULL", [](View &v, Execution &) { v.v_scale.data = nullptr; });
    expect(invalid, "cache.k overlaps cache.v", [](View &v, Execution &) { v.v.data = v.k.data; });
    expect(invalid, "num_threads", [](View &, Execution &e) { e.num_threads = -1; });
    expect(HEED_NO_DEVICE, "device", [](View &, Execution &e) { e.device = HEED_CUDA; });
    FilledCache cache((CacheShape()));
    const heed_kv_view view = cache.view();
    EXPECT_FAILS(heed_kv_copy(nullptr, &good, 1, nullptr), invalid, "cache is NULL");
    EXPECT_FAILS(call_kv_copy(&view, nullptr, 1, nullptr), invalid, "ranges is NULL");
    EXPECT_FAILS(call_kv_copy(&view, &good, -1, nullptr), invalid, "num_ranges is -1");
}

}  // namespace
}  // namespace heed_test::ops
