#include "runtime/reference/make_case.h"

#include <cstring>

#include "runtime/reference/case_arrays.h"
#include "runtime/reference/placement.h"

namespace heed_reference {
namespace {

heed_problem problem_of(const Attention &a) {
    heed_problem p;
    heed_problem_init(&p);
    p.dtype = a.dtype;
    p.kv_dtype = a.kv_dtype();
    p.position = a.position;
    copy_logit_fields(a, &p);
    p.dropout_p = a.dropout_p;
    return p;
}

Placement dense(int64_t batch, int64_t len) {
    Placement placement{batch, len, len, {}};
    for (int64_t b = 0; b < batch; b++) {
        for (int64_t i = 0; i < len; i++) placement.slots.push_back({b, i});
    }
    return placement;
}

// Pages in descending order, and their table.
Placement place_in_pages(const Attention &a, int32_t page_size, std::vector<int32_t> *page_table) {
    const int64_t pages = a.kv_len / page_size, all = a.batch * pages;
    Placement placement{all, page_size, a.kv_len, {}};
    for (int64_t n = 0; n < all; n++) {
        const int64_t page = all - 1 - n;
        page_table->push_back(static_cast<int32_t>(page));
        for (int64_t j = 0; j < page_size; j++) placement.slots.push_back({page, j});
    }
    return placement;
}

template <typename T>
void add_array(Case &c, const char *name, ElementType type, const std::vector<int64_t> &shape,
               const std::vector<T> &data) {
    if (data.empty()) return;
    Array array = make_array(type, shape);
    std::memcpy(array.data.data(), data.data(), array.data.size());
    c.arrays[name] = std::move(array);
}

Array array_of(const std::vector<float> &rows, const Placement &placement, int64_t heads, int64_t dim,
               heed_dtype dtype) {
    Array array = make_array(element_type(dtype), {placement.outer, placement.inner, heads, dim});
    const Extents extents = {{placement.outer, placement.inner, heads, dim}};
    scatter(rows, placement, extents, Strides(extents, {}), dtype, array.data.data());
    return array;
}

void add_keys(Case &c, const std::string &name, const std::vector<float> &rows, const Placement &placement,
              const Attention &a, int32_t head_dim) {
    if (!a.int8_kv) {
        c.arrays[name] = array_of(rows, placement, a.num_kv_heads, head_dim, a.dtype);
        return;
    }
    const Extents extents = {{placement.outer, placement.inner, a.num_kv_heads, head_dim}};
    Array codes = make_array(ElementType::i8, {placement.outer, placement.inner, a.num_kv_heads, head_dim});
    Array scales = make_array(ElementType::f32, {placement.outer, placement.inner, a.num_kv_heads});
    scatter_int8(rows, placement, extents, Strides(extents, {}), codes.as<int8_t>(), scales.as<float>());
    c.arrays[name] = std::move(codes);
    c.arrays[name + "_scale"] = std::move(scales);
}

void add_score_forms(Case &c, const Attention &a) {
    const auto shape = [](const std::array<int32_t, 4> &s) { return std::vector<int64_t>(s.begin(), s.end()); };
    add_array(c, "mask", ElementType::u8, shape(a.mask.shape), a.mask.data);
    add_array(c, "sink", ElementType::f32, {a.num_heads}, a.sink);
    add_array(c, "alibi_slopes", ElementType::f32, {a.num_heads}, a.alibi_slopes);
    if (!a.bias.used) return;
    Array bias = make_array(element_type(a.bias_dtype), shape(a.bias.shape));
    for (int64_t n = 0; n < bias.size(); n++)
        store(bias.data.data(), n, a.bias_dtype, a.bias.data[static_cast<size_t>(n)]);
    c.arrays["bias"] = std::move(bias);
}

}  // namespace

Case make_case(const Attention &a, int32_t page_size) {
    Case c = {};
    c.problem = problem_of(a);
    c.dropout_seed = a.dropout_seed;
    c.dropout_offset = a.dropout_offset;
    std::vector<int32_t> page_table;
    const Placement kv = page_size == 0 ? dense(a.batch, a.kv_len) : place_in_pages(a, page_size, &page_table);
    if (page_size > 0) c.problem.kv_storage = HEED_KV_PAGED;
    c.arrays["q"] = array_of(a.q, dense(a.batch, a.q_len), a.num_heads, a.head_dim, a.dtype);
    add_keys(c, "k", a.k, kv, a, a.head_dim);
    add_keys(c, "v", a.v, kv, a, a.head_dim_v);
    if (page_size > 0) add_array(c, "page_table", ElementType::i32, {a.batch, a.kv_len / page_size}, page_table);
    add_array(c, "kv_lens", ElementType::i32, {a.batch}, a.kv_lens);
    add_array(c, "q_offsets", ElementType::i32, {a.batch}, a.q_offsets);
    add_score_forms(c, a);
    complete_case(c);
    return c;
}

}  // namespace heed_reference
