// heed_kv_append: where tokens go, what int8 codes are, what is refused.
#include <algorithm>

#include "tests/ops/cache.h"
#include "tests/ops/device_call.h"

namespace heed_test::ops {
namespace {

class AppendTest : public OpTest {};
INSTANTIATE_TEST_SUITE_P(Ops, AppendTest, testing::ValuesIn(op_cases()), op_case_name);

// The contract's quantisation of one row, in the order of operations that it names.
float row_scale(const std::vector<float> &row) {
    float largest = 0;
    for (const float x : row) {
        if (!std::isfinite(x)) return NAN;
        largest = std::max(largest, std::abs(x));
    }
    return largest / 127.0f;
}

int8_t row_code(float x, float scale) {
    if (scale == 0 || std::isnan(scale)) return 0;
    return static_cast<int8_t>(std::clamp(std::nearbyint(x / scale), -127.0f, 127.0f));
}

void expect_row(const std::vector<float> &row, const Tensor &cache, const Tensor &scales, int64_t block, int64_t slot,
                int64_t head) {
    const auto length = static_cast<int64_t>(row.size());
    if (cache.dtype() != HEED_I8) {
        for (int64_t d = 0; d < length; d++) {
            const float want = row[static_cast<size_t>(d)], got = cache.get(block, slot, head, d);
            ASSERT_EQ(std::memcmp(&want, &got, 4), 0) << want << " " << got << " at " << d;
        }
        return;
    }
    const float scale = row_scale(row), got_scale = scales.get(block, slot, head, 0);
    if (std::isnan(scale)) {
        ASSERT_TRUE(std::isnan(got_scale));
    } else {
        ASSERT_EQ(got_scale, scale);
    }
    for (int64_t d = 0; d < length; d++) {
        ASSERT_EQ(cache.at<int8_t>(block, slot, head, d), row_code(row[static_cast<size_t>(d)], scale)) << d;
    }
}

std::vector<float> row_of(const Tensor &x, int64_t b, int64_t t, int64_t h) {
    std::vector<float> row;
    for (int64_t d = 0; d < x.extents()[3]; d++) row.push_back(x.get(b, t, h, d));
    return row;
}

// Rows of k, rotated by heed_rope, as an append with the same tables must write them.
Tensor rotated(const Append &append, const std::vector<int32_t> &positions) {
    const Extents &e = append.k_new.extents();
    Tensor out(append.args.dtype, e);
    heed_rope_args rope = {};
    rope.struct_size = sizeof(rope);
    rope.dtype = append.args.dtype;
    rope.batch = static_cast<int32_t>(e[0]);
    rope.len = static_cast<int32_t>(e[1]);
    rope.num_heads = static_cast<int32_t>(e[2]);
    rope.head_dim = static_cast<int32_t>(e[3]);
    rope.x = append.k_new.tensor();
    rope.x_layout = append.k_new.layout;
    rope.out = out.tensor();
    rope.tables = append.rope;
    rope.tables.positions = positions.data();
    EXPECT_EQ(call_rope(&rope), HEED_OK) << heed_last_error();
    return out;
}

// Every slot that holds a token, and that nothing else changed. `before` are the lengths before the append.
void expect_appended(Append &append, const Tensor &k_rows, const std::vector<int32_t> &before,
                     const std::vector<int32_t> &new_lens) {
    Cache &cache = *append.cache;
    std::vector<std::pair<int64_t, int64_t>> written;
    for (int32_t b = 0; b < cache.shape.batch; b++) {
        const auto i = static_cast<size_t>(b);
        EXPECT_EQ(cache.kv_lens[i], before[i] + new_lens[i]);
        for (int32_t t = 0; t < new_lens[i]; t++) {
            const auto [block, slot] = cache.slot(b, before[i] + t);
            written.emplace_back(block, slot);
            for (int32_t h = 0; h < cache.shape.num_kv_heads; h++) {
                expect_row(row_of(k_rows, b, t, h), cache.k, cache.k_scale, block, slot, h);
                expect_row(row_of(append.v_new, b, t, h), cache.v, cache.v_scale, block, slot, h);
            }
        }
    }
    for (const Tensor *tensor : {&cache.k, &cache.v, &cache.k_scale, &cache.v_scale}) {
        EXPECT_TRUE(tensor->gaps_intact());
        std::vector<unsigned char> rest = tensor->bytes();
        const int64_t bytes = element_bytes(tensor->dtype());
        const bool scales = tensor == &cache.k_scale || tensor == &cache.v_scale;
        for (const auto &[block, slot] : written) {
            for (int64_t h = 0; h < cache.shape.num_kv_heads && (!scales || cache.shape.dtype == HEED_I8); h++) {
                std::memset(rest.data() + tensor->offset(block, slot, h, 0) * bytes, 0xff,
                            static_cast<size_t>(tensor->extents()[3] * bytes));
            }
        }
        EXPECT_TRUE(std::all_of(rest.begin(), rest.end(), [](unsigned char x) { return x == 0xff; }));
    }
}

TEST_P(AppendTest, TokensGoBehindTheLengths) {
    for (const bool quantised : {false, true}) {
        if (quantised) expect_kernel(heed::Op::kv_append, dtype(), HEED_I8);
        for (const bool paged : {false, true}) {
            for (const int32_t new_len : {1, 3, 8, 9, 17}) {
                CacheShape shape;
                shape.paged = paged;
                shape.dtype = quantised ? HEED_I8 : dtype();
                shape.layout = new_len % 2 == 0 ? Layout::padded : new_len == 3 ? Layout::bhsd : Layout::packed;
                shape.flush = new_len % 3 == 0 ? Flush::front : Flush::rear;
                shape.head_dim = new_len == 9 ? 57 : 64;
                Cache cache(shape);
                cache.kv_lens = {7, 0};
                const std::vector<int32_t> before = cache.kv_lens, new_lens = {new_len, new_len / 2};
                Append append(&cache, dtype(), new_len, new_len == 8 ? Layout::bhsd : Layout::packed);
                append.args.new_lens = new_lens.data();
                ASSERT_EQ(call_kv_append(&append.args), HEED_OK) << heed_last_error();
                expect_appended(append, append.k_new, before, new_lens);
            }
        }
    }
}

// The fused rotation gives the bits of heed_rope followed by an append, in int8 too.
TEST_P(AppendTest, RotatesKeysOnTheirWay) {
    for (const bool quantised : {false, true}) {
        for (const bool listed : {false, true}) {
            for (const bool interleaved : {false, true}) {
                for (const int32_t rotary_dim : {0, 18, 64}) {
                    CacheShape shape;
                    shape.paged = interleaved;
                    shape.dtype = quantised ? HEED_I8 : dtype();
                    shape.num_kv_heads = 7;
                    Cache cache(shape);
                    cache.kv_lens = {7, 2};
                    const std::vector<int32_t> before = cache.kv_lens, new_lens = {5, 5};
                    Append append(&cache, dtype(), 5);
                    append.add_rope(rotary_dim, 50, interleaved);
                    std::vector<int32_t> positions;
                    for (int32_t i = 0; i < 10; i++) {
                        positions.push_back(listed ? 49 - 3 * i : before[static_cast<size_t>(i / 5)] + i % 5);
                    }
                    if (listed) append.rope.positions = positions.data();
                    ASSERT_EQ(call_kv_append(&append.args), HEED_OK) << heed_last_error();
                    expect_appended(append, rotated(append, positions), before, new_lens);
                }
            }
        }
    }
}

TEST_P(AppendTest, QuantisesEdgeRows) {
    CacheShape shape;
    shape.dtype = HEED_I8;
    shape.batch = 1;
    shape.num_kv_heads = 1;
    shape.head_dim = shape.head_dim_v = 37;
    Cache cache(shape);
    const int32_t rows = 9;
    Append append(&cache, dtype(), rows);
    const auto fill = [&](int32_t row, float x) {
        for (int64_t d = 0; d < 37; d++) append.k_new.set(0, row, 0, d, x);
    };
    fill(0, 0.0f);
    fill(1, -0.0f);
    append.k_new.set(0, 2, 0, 36, NAN);
    append.k_new.set(0, 3, 0, 0, INFINITY);
    append.k_new.set(0, 4, 0, 17, -INFINITY);
    for (int32_t d = 0; d < 37; d++) append.k_new.set(0, 5, 0, d, static_cast<float>(d - 18) + 0.5f);  // ties at 127
    append.k_new.set(0, 5, 0, 36, 127.0f);
    fill(6, 1e-45f);  // subnormal: max / 127 is 0 in f32
    fill(7, -3.0f);
    fill(8, dtype() == HEED_F16 ? 6e-8f : 3e38f);
    ASSERT_EQ(call_kv_append(&append.args), HEED_OK) << heed_last_error();
    expect_appended(append, append.k_new, {0}, {rows});
    EXPECT_EQ(cache.k_scale.get(0, 0, 0, 0), 0.0f);
    EXPECT_EQ(cache.k.at<int8_t>(0, 5, 0, 18), 0);  // 0.5 rounds to even
    EXPECT_EQ(cache.k.at<int8_t>(0, 5, 0, 19), 2);  // 1.5 too
}

TEST_P(AppendTest, ThreadsDoNotChangeABit) {
    FOR_THE_CPU();
    CacheShape shape;
    shape.dtype = HEED_I8;
    shape.capacity = 2000;
    shape.num_kv_heads = 8;
    std::vector<std::vector<unsigned char>> first;
    for (const int32_t threads : {1, 2, 3, 0}) {
        Cache cache(shape);
        Append append(&cache, dtype(), 777);
        append.args.execution.num_threads = threads;
        ASSERT_EQ(call_kv_append(&append.args), HEED_OK) << heed_last_error();
        if (first.empty()) first = cache.contents();
        EXPECT_EQ(cache.contents(), first) << threads;
    }
}

// k and v of one pool, page by page, token by token or head by head.
TEST_P(AppendTest, InterleavedKeysAndValues) {
    FOR_THE_CPU();
    const int64_t d = 64, heads = 2, page = 8, row = d * heads;
    const struct {
        heed_layout layout;
        int64_t distance;
    } kinds[] = {{{{2 * page * row, row, d, 1}}, page * row},
                 {{{2 * page * row, 2 * row, d, 1}}, row},
                 {{{2 * page * row, 2 * row, 2 * d, 1}}, d}};
    for (const auto &kind : kinds) {
        CacheShape shape;
        shape.paged = true;
        shape.dtype = dtype();
        shape.head_dim_v = 64;
        Cache cache(shape), separate(shape);
        Append append(&cache, dtype(), 9), reference(&separate, dtype(), 9);
        Tensor pool(dtype(), {shape.num_pages, 2, page, row});
        append.args.cache.k = append.args.cache.v = pool.tensor();
        append.args.cache.v.data = static_cast<char *>(pool.tensor().data) + kind.distance * element_bytes(dtype());
        append.args.cache.v.size -= kind.distance;
        append.args.cache.k.size -= kind.distance;
        append.args.cache.k_layout = append.args.cache.v_layout = kind.layout;
        ASSERT_EQ(call_kv_append(&append.args), HEED_OK) << heed_last_error();
        ASSERT_EQ(call_kv_append(&reference.args), HEED_OK) << heed_last_error();
        const auto bytes = pool.bytes();
        const auto *data = static_cast<const char *>(pool.tensor().data);
        separate.k.for_each([&](int64_t b, int64_t t, int64_t h, int64_t i) {
            const int64_t *s = kind.layout.stride, at = b * s[0] + t * s[1] + h * s[2] + i;
            for (const auto &[tensor, offset] :
                 {std::make_pair(&separate.k, int64_t{0}), {&separate.v, kind.distance}}) {
                const int64_t size = element_bytes(dtype());
                ASSERT_EQ(
                    std::memcmp(data + (at + offset) * size,
                                static_cast<const char *>(tensor->tensor().data) + tensor->offset(b, t, h, i) * size,
                                static_cast<size_t>(size)),
                    0);
            }
        });
        // One element nearer and they overlap.
        append.args.cache.v.data = static_cast<char *>(append.args.cache.v.data) - element_bytes(dtype());
        EXPECT_FAILS(call_kv_append(&append.args), HEED_INVALID_ARGUMENT, "cache.k overlaps cache.v");
        EXPECT_EQ(pool.bytes(), bytes);
    }
}

// Token after token, in pieces or at once: the same cache.
TEST_P(AppendTest, PiecesGiveTheWhole) {
    for (const bool paged : {false, true}) {
        CacheShape shape;
        shape.paged = paged;
        shape.dtype = HEED_I8;
        Cache whole(shape), pieces(shape);
        Append all(&whole, dtype(), 1 + 3 + 8 + 9);
        ASSERT_EQ(call_kv_append(&all.args), HEED_OK) << heed_last_error();
        int32_t first = 0;
        for (const int32_t count : {1, 3, 8, 9}) {
            Append piece(&pieces, dtype(), count);
            for (const auto &tensors : {std::make_pair(&piece.k_new, &all.k_new), {&piece.v_new, &all.v_new}}) {
                tensors.first->for_each([&](int64_t b, int64_t t, int64_t h, int64_t d) {
                    tensors.first->set(b, t, h, d, tensors.second->get(b, first + t, h, d));
                });
            }
            ASSERT_EQ(call_kv_append(&piece.args), HEED_OK) << heed_last_error();
            first += count;
        }
        EXPECT_EQ(pieces.contents(), whole.contents());
    }
}

}  // namespace
}  // namespace heed_test::ops
