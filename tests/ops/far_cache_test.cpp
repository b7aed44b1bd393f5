// Caches that reach past 2^31-1 elements: appends and copies leave there what they leave in a small cache, bit for bit.
#include "tests/ops/cache.h"
#include "tests/support/guard.h"

namespace heed_test::ops {
namespace {

constexpr int64_t beyond = (int64_t{1} << 31) + 64;

// A plane of a small cache, [block, slot, head, d], at other strides, in memory of which only its rows are there.
class FarPlane {
public:
    FarPlane(const Tensor &small, const std::array<int64_t, 3> &strides, int64_t span)
        : small_(small), strides_(strides), span_(span), bytes_(element_bytes(small.dtype())), memory_(span * bytes_) {}

    heed_tensor tensor() const { return {memory_.data(), span_, small_.dtype()}; }
    heed_layout layout() const { return {{strides_[0], strides_[1], strides_[2], 1}}; }

    // The row of a block, which is `first` blocks further on here.
    void expect_row(int64_t first, int64_t block, int64_t slot, int64_t head) const {
        const auto row = static_cast<size_t>(small_.extents()[3] * bytes_);
        const char *const here = static_cast<const char *>(memory_.data()) +
                                 ((first + block) * strides_[0] + slot * strides_[1] + head * strides_[2]) * bytes_;
        const char *const there =
            static_cast<const char *>(small_.tensor().data) + small_.offset(block, slot, head, 0) * bytes_;
        ASSERT_EQ(std::memcmp(here, there, row), 0) << "block " << block << ", slot " << slot << ", head " << head;
    }

private:
    const Tensor &small_;
    const std::array<int64_t, 3> strides_;
    const int64_t span_, bytes_;
    const ReservedBuffer memory_;
};

// All rows of the tokens that sequences of 3 tokens got.
void expect_appended(Cache *small, const std::vector<const FarPlane *> &planes, int64_t first) {
    for (int32_t b = 0; b < small->shape.batch; b++) {
        for (int32_t p = 3; p < small->kv_lens[static_cast<size_t>(b)]; p++) {
            const auto [block, slot] = small->slot(b, p);
            for (int32_t h = 0; h < small->shape.num_kv_heads; h++) {
                for (const FarPlane *plane : planes) plane->expect_row(first, block, slot, h);
            }
        }
    }
}

// One axis of the strides passes 2^31 elements, by itself or over all of its indices.
TEST(FarCaches, StridesOfAppends) {
    for (const bool paged : {false, true}) {
        for (const heed_dtype dtype : {HEED_F32, HEED_BF16, HEED_I8}) {
            for (const size_t axis : {size_t{0}, size_t{1}, size_t{2}}) {
                for (const bool rotates : {false, true}) {
                    CacheShape shape;
                    shape.paged = paged;
                    shape.dtype = dtype;
                    Cache small(shape);
                    small.kv_lens.assign(small.kv_lens.size(), 3);
                    Append append(&small, dtype == HEED_I8 ? HEED_F32 : dtype, 15);
                    if (rotates) append.add_rope(shape.head_dim, 40, false);
                    ASSERT_EQ(heed_kv_append(&append.args), HEED_OK) << heed_last_error();

                    const Extents extents = small.extents(shape.head_dim);
                    std::array<int64_t, 3> strides = {extents[1] * extents[2] * 64, extents[2] * 64, 64};
                    strides[axis] = beyond;
                    const int64_t span = (extents[0] - 1) * strides[0] + (extents[1] - 1) * strides[1] +
                                         (extents[2] - 1) * strides[2] + 64;
                    const FarPlane k(small.k, strides, span), v(small.v, strides, span);
                    std::vector<int32_t> lens(small.kv_lens.size(), 3);
                    heed_kv_view &view = append.args.cache;
                    view.k = k.tensor();
                    view.v = v.tensor();
                    view.k_layout = k.layout();
                    view.v_layout = v.layout();
                    view.kv_lens = lens.data();
                    ASSERT_EQ(heed_kv_append(&append.args), HEED_OK) << heed_last_error();
                    EXPECT_EQ(lens, small.kv_lens);
                    expect_appended(&small, {&k, &v}, 0);
                }
            }
        }
    }
}

// Appends to the last pages of a pool, and copies between them.
TEST(FarCaches, PoolsOfManyPages) {
    for (const heed_dtype dtype : {HEED_F32, HEED_BF16, HEED_I8}) {
        CacheShape shape;
        shape.paged = true;
        shape.dtype = dtype;
        shape.head_dim_v = 64;
        Cache small(shape);
        small.kv_lens.assign(small.kv_lens.size(), 3);
        Append append(&small, dtype == HEED_I8 ? HEED_F32 : dtype, 15);
        ASSERT_EQ(heed_kv_append(&append.args), HEED_OK) << heed_last_error();

        const int64_t page = int64_t{shape.page_size} * shape.num_kv_heads * 64, first = beyond / page + 1;
        const int64_t rows = (first + shape.num_pages) * page / 64;
        const std::array<int64_t, 3> of_rows = {page, int64_t{shape.num_kv_heads} * 64, 64},
                                     of_scales = {page / 64, shape.num_kv_heads, 1};
        const FarPlane k(small.k, of_rows, rows * 64), v(small.v, of_rows, rows * 64),
            k_scale(small.k_scale, of_scales, rows), v_scale(small.v_scale, of_scales, rows);
        std::vector<int32_t> lens(small.kv_lens.size(), 3), table = small.page_table;
        for (int32_t &id : table) id += static_cast<int32_t>(first);
        heed_kv_view &view = append.args.cache;
        view.num_pages = static_cast<int32_t>(first) + shape.num_pages;
        view.k = k.tensor();
        view.v = v.tensor();
        view.k_scale = k_scale.tensor();
        view.v_scale = v_scale.tensor();
        view.page_table = table.data();
        view.kv_lens = lens.data();
        ASSERT_EQ(heed_kv_append(&append.args), HEED_OK) << heed_last_error();
        std::vector<const FarPlane *> planes = {&k, &v};
        if (dtype == HEED_I8) planes.insert(planes.end(), {&k_scale, &v_scale});
        expect_appended(&small, planes, first);

        // A full page of a sequence to an unused one, in both caches.
        const int32_t from = small.page(0, 1), to = 2;
        const heed_kv_range near = {from, to, 0, 8},
                            far = {from + static_cast<int32_t>(first), to + static_cast<int32_t>(first), 0, 8};
        const heed_kv_view small_view = small.view();
        const heed_execution execution = {};
        ASSERT_EQ(heed_kv_copy(&small_view, &near, 1, &execution), HEED_OK) << heed_last_error();
        ASSERT_EQ(heed_kv_copy(&view, &far, 1, &execution), HEED_OK) << heed_last_error();
        for (int32_t slot = 0; slot < 8; slot++) {
            for (const FarPlane *plane : planes) plane->expect_row(first, to, slot, 1);
        }
    }
}

}  // namespace
}  // namespace heed_test::ops
