#include "tests/fuzz/cache_model.h"

#include "runtime/reference/element.h"

namespace heed_test {

CacheModel::CacheModel(ByteReader *bytes) {
    heed_kv_view &s = shape_;
    s.storage = bytes->one_of({HEED_KV_CONTIGUOUS, HEED_KV_PAGED});
    s.dtype = bytes->one_of({HEED_F32, HEED_F16, HEED_BF16, HEED_I8});
    s.batch = bytes->between(0, 3);
    s.num_kv_heads = bytes->between(1, 3);
    s.head_dim = bytes->between(1, 20);
    s.head_dim_v = bytes->between(1, 20);
    s.capacity = bytes->between(0, 12);
    if (paged()) {
        s.num_pages = bytes->between(0, 6);
        s.page_size = bytes->between(1, 5);
        s.max_pages_per_seq = bytes->between(0, 4);
        page_table.resize(static_cast<size_t>(s.batch * s.max_pages_per_seq));
        for (int32_t &page : page_table) page = bytes->between(0, 7);
    }
    kv_lens.resize(static_cast<size_t>(s.batch));
    for (int32_t &len : kv_lens) len = bytes->between(0, 8);
    planes.reserve(4);
    make_plane(bytes, s.head_dim, s.dtype, false);
    make_plane(bytes, s.head_dim_v, s.dtype, false);
    if (s.dtype != HEED_I8) return;
    make_plane(bytes, 1, HEED_F32, true);
    make_plane(bytes, 1, HEED_F32, true);
}

void CacheModel::make_plane(ByteReader *bytes, int64_t row, heed_dtype dtype, bool packed) {
    Plane plane;
    const int64_t heads = shape_.num_kv_heads, len = block_len(), gap = packed ? 0 : bytes->between(0, 2);
    const int64_t width = row + gap;
    plane.layout = {{len * heads * width, heads * width, width, 1}};
    if (!packed && bytes->flag()) plane.layout = {{len * heads * width, width, len * width, 1}};
    plane.element_bytes = element_bytes(dtype);
    plane.row_bytes = row * plane.element_bytes;
    const int64_t rows = num_blocks() * len * heads, elements = rows == 0 ? 0 : rows * width - gap;
    plane.bytes.assign(static_cast<size_t>(elements * plane.element_bytes), 0xa5);
    plane.model = plane.bytes;
    planes.push_back(plane);
}

heed_kv_view CacheModel::view() {
    heed_kv_view view = shape_;
    const auto tensor = [&](size_t index, heed_dtype dtype) -> heed_tensor {
        if (index >= planes.size()) return {nullptr, 0, dtype};
        std::vector<uint8_t> &bytes = planes[index].bytes;
        return {bytes.data(), static_cast<int64_t>(bytes.size()) / element_bytes(dtype), dtype};
    };
    view.k = tensor(0, shape_.dtype);
    view.v = tensor(1, shape_.dtype);
    view.k_scale = tensor(2, HEED_F32);
    view.v_scale = tensor(3, HEED_F32);
    view.k_layout = planes[0].layout;
    view.v_layout = planes[1].layout;
    view.page_table = page_table.data();
    view.kv_lens = kv_lens.data();
    return view;
}

void CacheModel::expect_as_model(const char *operation) {
    for (const Plane &plane : planes) {
        require(plane.bytes == plane.model, std::string(operation) + " leaves the cache as loops would");
    }
}

void CacheModel::adopt(Plane *plane, int64_t block, int64_t slot) {
    for (int64_t head = 0; head < shape_.num_kv_heads; head++) {
        std::memcpy(plane->row(&plane->model, block, slot, head), plane->row(&plane->bytes, block, slot, head),
                    static_cast<size_t>(plane->row_bytes));
    }
}

}  // namespace heed_test
