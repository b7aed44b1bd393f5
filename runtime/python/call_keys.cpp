// The keys and values of a call: packed, in pages or contiguous.
#include <algorithm>

#include "runtime/python/call.h"
#include "runtime/python/errors.h"

namespace heed::python {

void AttentionCall::set_packed_keys(const Array &k, const Array &cu_seqlens) {
    heed_problem &p = settings_.problem;
    k.check_rank(3, "[total_kv, num_kv_heads, head_dim]");
    cu_seqlens.check_shape({int64_t{p.batch} + 1}, "[batch + 1]");
    p.kv_storage = HEED_KV_VARLEN;
    p.total_kv = k.extent(0);
    p.max_kv_len = longest("max_kv_len", cu_seqlens);
}

void AttentionCall::set_paged_keys(const Array &k, const Array &page_table) {
    heed_problem &p = settings_.problem;
    k.check_rank(4, "[num_pages, page_size, num_kv_heads, head_dim]");
    page_table.check_shape({p.batch, page_table.shape[1]}, "[batch, max_pages_per_seq]");
    p.kv_storage = HEED_KV_PAGED;
    p.num_pages = k.extent(0);
    p.page_size = k.extent(1);
    p.max_pages_per_seq = page_table.extent(1);
    const int64_t slots = int64_t{p.page_size} * p.max_pages_per_seq;
    if (!fields_.contains("max_kv_len")) p.max_kv_len = static_cast<int32_t>(std::min<int64_t>(slots, INT32_MAX));
}

void AttentionCall::set_contiguous_keys(const Array &k) {
    heed_problem &p = settings_.problem;
    k.check_rank(4, "[batch, kv_len, num_kv_heads, head_dim]");
    k.check_shape({p.batch, k.shape[1], k.shape[2], p.head_dim}, "[batch, kv_len, num_kv_heads, head_dim]");
    if (fields_.contains("max_kv_len")) refuse("max_kv_len is given with contiguous keys, where k's shape tells it");
    p.max_kv_len = k.extent(1);
}

void AttentionCall::set_keys() {
    heed_problem &p = settings_.problem;
    const Array &k = *given_.k, &v = *given_.v;
    const Array *cu_seqlens = given_.cu_seqlens_kv, *page_table = given_.page_table, *kv_lens = given_.kv_lens;
    if (cu_seqlens != nullptr && page_table != nullptr) {
        refuse("cu_seqlens_kv and page_table are both given; keys are either packed or in pages");
    }
    if (cu_seqlens != nullptr) {
        set_packed_keys(k, *cu_seqlens);
    } else if (page_table != nullptr) {
        set_paged_keys(k, *page_table);
    } else {
        set_contiguous_keys(k);
    }
    k.check_shape(k.shape_with_last(p.head_dim), "one of q's head_dim");
    v.check_rank(k.rank, "as k");
    v.check_shape(k.shape_with_last(v.shape[v.rank - 1]), "k's except for the last axis");
    if (k.tensor.dtype != p.dtype && k.tensor.dtype != HEED_I8) {
        refuse("k has elements of %s; they must be %s, as q's, or int8", dtype_name(k.tensor.dtype),
               dtype_name(p.dtype));
    }
    v.check_dtype(k.tensor.dtype);
    p.kv_dtype = k.tensor.dtype;
    p.num_kv_heads = k.extent(k.rank - 2);
    p.head_dim_v = v.extent(v.rank - 1);
    p.k_layout = layout_of(k);
    p.v_layout = layout_of(v);
    settings_.args.k = k.tensor;
    settings_.args.v = v.tensor;
    set_scale("k_scale", given_.k_scale, &settings_.args.k_scale);
    set_scale("v_scale", given_.v_scale, &settings_.args.v_scale);
    p.has_kv_lens = kv_lens != nullptr;
    if (!p.has_kv_lens && page_table != nullptr) refuse("kv_lens is missing; it must be given with page_table");
    if (p.has_kv_lens) kv_lens->check_shape({p.batch}, "[batch]");
}

void AttentionCall::set_scale(const char *name, const Array *scale, heed_tensor *target) const {
    if ((scale != nullptr) != (settings_.problem.kv_dtype == HEED_I8)) {
        refuse("%s is %s; it must be there for int8 keys and values, and for no others", name,
               scale != nullptr ? "given" : "missing");
    }
    if (scale == nullptr) return;
    std::vector<int64_t> shape = given_.k->shape_with_last(0);
    shape.pop_back();
    scale->check_shape(shape, "k's without the last axis");
    scale->check_packed(HEED_F32);
    *target = scale->tensor;
}

}  // namespace heed::python
