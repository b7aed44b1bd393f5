// A cache in guarded memory, contiguous or paged, and appends to it.
#pragma once

#include <cmath>
#include <memory>
#include <optional>

#include "tests/ops/tensor.h"

namespace heed_test::ops {

struct CacheShape {
    bool paged = false;
    heed_dtype dtype = HEED_F32;
    int32_t batch = 2, num_kv_heads = 2, head_dim = 64, head_dim_v = 48;
    int32_t capacity = 40;                                         // contiguous
    int32_t num_pages = 14, page_size = 8, max_pages_per_seq = 5;  // paged
    Layout layout = Layout::packed;
    Flush flush = Flush::rear;
};

struct Cache {
    explicit Cache(const CacheShape &shape)
        : shape(shape), k(shape.dtype, extents(shape.head_dim), shape.layout, shape.flush),
          v(shape.dtype, extents(shape.head_dim_v), shape.layout, shape.flush),
          k_scale(HEED_F32, extents(1), Layout::packed, shape.flush),
          v_scale(HEED_F32, extents(1), Layout::packed, shape.flush), kv_lens(static_cast<size_t>(shape.batch), 0),
          page_table(static_cast<size_t>(shape.batch * shape.max_pages_per_seq), 0x7fffffff) {
        // Scattered pages, no two alike; entries that nothing touches keep garbage.
        for (int32_t b = 0; b < shape.batch; b++) {
            for (int32_t i = 0; i < shape.max_pages_per_seq; i++) {
                page(b, i) = ((b * shape.max_pages_per_seq + i) * 5 + 3) % shape.num_pages;
            }
        }
    }

    Extents extents(int32_t head_dim) const {
        return {shape.paged ? shape.num_pages : shape.batch, shape.paged ? shape.page_size : shape.capacity,
                shape.num_kv_heads, head_dim};
    }
    int32_t &page(int32_t b, int32_t i) { return page_table[static_cast<size_t>(b * shape.max_pages_per_seq + i)]; }

    heed_kv_view view() {
        heed_kv_view view = {};
        view.storage = shape.paged ? HEED_KV_PAGED : HEED_KV_CONTIGUOUS;
        view.dtype = shape.dtype;
        view.batch = shape.batch;
        view.num_kv_heads = shape.num_kv_heads;
        view.head_dim = shape.head_dim;
        view.head_dim_v = shape.head_dim_v;
        view.capacity = shape.capacity;
        view.num_pages = shape.num_pages;
        view.page_size = shape.page_size;
        view.max_pages_per_seq = shape.max_pages_per_seq;
        view.k = k.tensor();
        view.v = v.tensor();
        view.k_layout = k.layout;
        view.v_layout = v.layout;
        view.k_scale = k_scale.tensor();
        view.v_scale = v_scale.tensor();
        view.page_table = shape.paged ? page_table.data() : nullptr;
        view.kv_lens = kv_lens.data();
        return view;
    }

    // Block and slot of position p of sequence b.
    std::pair<int64_t, int64_t> slot(int32_t b, int32_t p) {
        if (!shape.paged) return {b, p};
        return {page(b, p / shape.page_size), p % shape.page_size};
    }

    // All that an append could write.
    std::vector<std::vector<unsigned char>> contents() const {
        const auto *lens = reinterpret_cast<const unsigned char *>(kv_lens.data());
        return {k.bytes(), v.bytes(), k_scale.bytes(), v_scale.bytes(), {lens, lens + 4 * kv_lens.size()}};
    }

    CacheShape shape;
    Tensor k, v, k_scale, v_scale;
    std::vector<int32_t> kv_lens, page_table;
};

// One append with its new tokens.
struct Append {
    Append(Cache *cache, heed_dtype dtype, int32_t new_len, Layout layout = Layout::packed, uint64_t seed = 11)
        : cache(cache), k_new(dtype, {cache->shape.batch, new_len, cache->shape.num_kv_heads, cache->shape.head_dim},
                              layout, cache->shape.flush),
          v_new(dtype, {cache->shape.batch, new_len, cache->shape.num_kv_heads, cache->shape.head_dim_v}, layout,
                cache->shape.flush) {
        k_new.fill_normal(seed);
        v_new.fill_normal(seed + 1);
        args = {};
        args.struct_size = sizeof(args);
        args.dtype = dtype;
        args.new_len = new_len;
        args.k_new = k_new.tensor();
        args.v_new = v_new.tensor();
        args.k_new_layout = k_new.layout;
        args.v_new_layout = v_new.layout;
        args.cache = cache->view();
    }

    // cos and sin of `rows` positions for rotary_dim elements.
    void add_rope(int32_t rotary_dim, int32_t rows, bool interleaved) {
        cos.emplace(HEED_F32, Extents{1, 1, rows, rotary_dim / 2});
        sin.emplace(HEED_F32, Extents{1, 1, rows, rotary_dim / 2});
        cos->for_each([&](int64_t a, int64_t b, int64_t p, int64_t n) {
            const double angle = static_cast<double>(p) * std::pow(100.0, -2.0 * static_cast<double>(n) / rotary_dim);
            cos->set(a, b, p, n, static_cast<float>(std::cos(angle)));
            sin->set(a, b, p, n, static_cast<float>(std::sin(angle)));
        });
        rope = {};
        rope.rotary_dim = rotary_dim;
        rope.interleaved = interleaved;
        rope.max_position = rows;
        rope.cos = cos->tensor();
        rope.sin = sin->tensor();
        args.rope = &rope;
    }

    Cache *cache;
    Tensor k_new, v_new;
    std::optional<Tensor> cos, sin;
    heed_rope_tables rope;
    heed_kv_append_args args;
};

}  // namespace heed_test::ops
