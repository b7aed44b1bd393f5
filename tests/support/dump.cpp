#include "tests/support/dump.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "runtime/reference/case_arrays.h"
#include "runtime/reference/case_file.h"

namespace heed_test {
namespace {

using Extent = std::vector<int64_t>;

Array array_of(ElementType type, const Extent &shape, const void *data) {
    Array array = make_array(type, shape);
    if (!array.data.empty()) std::memcpy(array.data.data(), data, array.data.size());
    return array;
}

Array array_of(const heed_tensor &tensor, const Extent &shape) {
    return array_of(element_type(tensor.dtype), shape, tensor.data);
}

// max_kv_len as a case with these keys means it.
int32_t capacity_in_case(const Attention &a, const CallOptions &options) {
    if (options.kv_storage == HEED_KV_PAGED) return lay_out(a, options).max_pages_per_seq * options.page_size;
    if (options.kv_storage == HEED_KV_CONTIGUOUS) return a.kv_len;
    int32_t longest = 0;
    for (int32_t b = 0; b < a.batch; b++) longest = std::max(longest, a.kv_len_of(b));
    return longest;
}

// The extents of q, k and v, or with head_dim 0 of the scales of k and v.
Extent q_extent(const heed_problem &p) {
    if (p.q_storage == HEED_Q_VARLEN) return {p.total_q, p.num_heads, p.head_dim};
    return {p.batch, p.max_q_len, p.num_heads, p.head_dim};
}
Extent kv_extent(const heed_problem &p, int32_t head_dim) {
    Extent extent = {p.batch, p.max_kv_len, p.num_kv_heads};
    if (p.kv_storage == HEED_KV_VARLEN) extent = {p.total_kv, p.num_kv_heads};
    if (p.kv_storage == HEED_KV_PAGED) extent = {p.num_pages, p.page_size, p.num_kv_heads};
    if (head_dim > 0) extent.push_back(head_dim);
    return extent;
}

}  // namespace

CallOptions as_in_case(const Attention &a, const CallOptions &options) {
    CallOptions plain = options;
    plain.with_layout(Layout::packed);
    plain.q_storage = a.q_lens.empty() ? HEED_Q_DENSE : HEED_Q_VARLEN;
    plain.fused_qkv = plain.garbage_strides = false;
    plain.offset = 0;
    plain.want_lse = true;
    const bool illegal = plain.q_storage == HEED_Q_DENSE && plain.kv_storage == HEED_KV_VARLEN;
    if (illegal || capacity_in_case(a, plain) != a.kv_len) plain.kv_storage = HEED_KV_CONTIGUOUS;
    return plain;
}

void dump_case(const std::filesystem::path &path, const Attention &a, const CallOptions &options) {
    Call call(a, as_in_case(a, options));
    if (call.prepare() != HEED_OK) throw std::runtime_error(heed_last_error());
    Case c = {};
    c.problem = call.problem;
    c.dropout_seed = a.dropout_seed;
    c.dropout_offset = a.dropout_offset;
    const heed_problem &p = call.problem;
    const heed_args &args = call.args;
    c.arrays["q"] = array_of(args.q, q_extent(p));
    c.arrays["k"] = array_of(args.k, kv_extent(p, p.head_dim));
    c.arrays["v"] = array_of(args.v, kv_extent(p, p.head_dim_v));
    const auto add = [&c](const char *name, ElementType type, const Extent &shape, const void *data) {
        if (data != nullptr) c.arrays[name] = array_of(type, shape, data);
    };
    add("k_scale", ElementType::f32, kv_extent(p, 0), args.k_scale.data);
    add("v_scale", ElementType::f32, kv_extent(p, 0), args.v_scale.data);
    const auto shape = [](const std::array<int32_t, 4> &s) { return Extent(s.begin(), s.end()); };
    if (a.mask.used) c.arrays["mask"] = array_of(args.mask, shape(a.mask.shape));
    if (a.bias.used) c.arrays["bias"] = array_of(args.bias, shape(a.bias.shape));
    add("kv_lens", ElementType::i32, {p.batch}, args.kv_lens);
    add("q_offsets", ElementType::i32, {p.batch}, args.q_offsets);
    add("cu_seqlens_q", ElementType::i32, {p.batch + 1}, args.cu_seqlens_q);
    add("cu_seqlens_kv", ElementType::i32, {p.batch + 1}, args.cu_seqlens_kv);
    add("page_table", ElementType::i32, {p.batch, p.max_pages_per_seq}, args.page_table);
#define HEED_ADD(name, ...) add(#name, ElementType::f32, {p.num_heads}, args.name);
    HEED_HEAD_ARRAYS(HEED_ADD)
#undef HEED_ADD
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
    write_case(path, c);
}

}  // namespace heed_test
