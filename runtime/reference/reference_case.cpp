#include "runtime/reference/reference_case.h"

#include <algorithm>

#include "runtime/reference/case_sequences.h"
#include "runtime/reference/element.h"
#include "runtime/reference/placement.h"

namespace heed_reference {
namespace {

template <typename T>
std::vector<T> values_of(const Case &c, const char *name) {
    if (!c.has(name)) return {};
    const Array &array = c.arrays.at(name);
    return std::vector<T>(array.as<T>(), array.as<T>() + array.size());
}

Placement make_placement(int64_t outer, int64_t inner, int64_t batch, int64_t len) {
    Placement placement{outer, inner, len, {}};
    placement.slots.assign(static_cast<size_t>(batch * len), {-1, 0});
    return placement;
}

Placement place_queries(const Case &c, const Attention &a) {
    const heed_problem &p = c.problem;
    const bool varlen = p.q_storage == HEED_Q_VARLEN;
    Placement q = make_placement(varlen ? 1 : p.batch, varlen ? p.total_q : p.max_q_len, a.batch, a.q_len);
    for (int64_t b = 0; b < a.batch; b++) {
        const Sequence s = sequence_of(c, b);
        for (int64_t i = 0; i < s.q_len; i++) q.at(b, i) = {varlen ? 0 : b, s.first_q + i};
    }
    return q;
}

Placement place_keys(const Case &c, const Attention &a) {
    const heed_problem &p = c.problem;
    const bool varlen = p.kv_storage == HEED_KV_VARLEN, paged = p.kv_storage == HEED_KV_PAGED;
    Placement kv = make_placement(varlen  ? 1
                                  : paged ? p.num_pages
                                          : p.batch,
                                  varlen  ? p.total_kv
                                  : paged ? p.page_size
                                          : p.max_kv_len,
                                  a.batch, a.kv_len);
    for (int64_t b = 0; b < a.batch; b++) {
        const Sequence s = sequence_of(c, b);
        for (int64_t j = 0; j < s.kv_len; j++) {
            kv.at(b, j) = {varlen ? 0 : b, s.first_key + j};
            if (!paged) continue;
            const int64_t page = b * p.max_pages_per_seq + j / p.page_size;
            kv.at(b, j) = {c.arrays.at("page_table").as<int32_t>()[page], j % p.page_size};
        }
    }
    return kv;
}

// code * scale in the places of the codes.
std::vector<float> decode(const Array &codes, const Array &scales, const Extents &e, const Strides &s) {
    std::vector<float> values(static_cast<size_t>(codes.size()));
    const float *scale = scales.as<float>();
    for (int64_t outer = 0; outer < e.n[0]; outer++) {
        for (int64_t inner = 0; inner < e.n[1]; inner++) {
            for (int64_t h = 0; h < e.n[2]; h++, scale++) {
                for (int64_t d = 0; d < e.n[3]; d++) {
                    const int64_t at = outer * s.n[0] + inner * s.n[1] + h * s.n[2] + d * s.n[3];
                    values[static_cast<size_t>(at)] = static_cast<float>(codes.as<int8_t>()[at]) * *scale;
                }
            }
        }
    }
    return values;
}

// The rows of k or v.
std::vector<float> gather_keys(const Case &c, const Array &array, const Array &scales, const Placement &placement,
                               const heed_layout &layout, int32_t head_dim) {
    const heed_problem &p = c.problem;
    const Extents extents = {{placement.outer, placement.inner, p.num_kv_heads, head_dim}};
    const Strides strides(extents, layout);
    if (p.kv_dtype != HEED_I8) return gather(placement, extents, strides, p.kv_dtype, array.data.data());
    const std::vector<float> values = decode(array, scales, extents, strides);
    return gather(placement, extents, strides, HEED_F32, values.data());
}

void copy_lengths(const Case &c, Attention &a) {
    const heed_problem &p = c.problem;
    // heed_execute looks at no metadata where there is no query.
    a.batch = p.max_q_len == 0 ? 0 : p.batch;
    a.q_len = a.kv_len = 0;
    for (int64_t b = 0; b < a.batch; b++) {
        const Sequence s = sequence_of(c, b);
        a.q_lens.push_back(static_cast<int32_t>(s.q_len));
        a.kv_lens.push_back(static_cast<int32_t>(s.kv_len));
        a.q_len = std::max(a.q_len, a.q_lens.back());
        a.kv_len = std::max(a.kv_len, a.kv_lens.back());
    }
    if (p.dropout_p == 0) return;
    a.q_len = p.max_q_len;
    a.kv_len = p.max_kv_len;
}

void copy_score_forms(const Case &c, Attention &a) {
    const heed_problem &p = c.problem;
#define HEED_READ(name, ...) a.name = values_of<float>(c, #name);
    HEED_HEAD_ARRAYS(HEED_READ)
#undef HEED_READ
    a.dropout_p = p.dropout_p;
    a.dropout_seed = c.dropout_seed;
    a.dropout_offset = c.dropout_offset;
    if (p.has_mask) {
        a.mask.used = true;
        std::copy_n(p.mask_shape, 4, a.mask.shape.begin());
        a.mask.data = c.arrays.at("mask").data;
    }
    if (p.has_bias) {
        const Array &bias = c.arrays.at("bias");
        a.bias.used = true;
        a.bias_dtype = p.bias_dtype;
        std::copy_n(p.bias_shape, 4, a.bias.shape.begin());
        for (int64_t n = 0; n < bias.size(); n++) {
            a.bias.data.push_back(load(bias.data.data(), n, p.bias_dtype));
        }
    }
}

}  // namespace

Attention attention_of(const Case &c) {
    const heed_problem &p = c.problem;
    Attention a;
    static_cast<Shape &>(a) = {0, p.num_heads, p.num_kv_heads, 0, 0, p.head_dim, p.head_dim_v};
    copy_lengths(c, a);
    a.dtype = p.dtype;
    a.int8_kv = p.kv_dtype == HEED_I8;
    a.position = p.position;
    heed_reference::copy_logit_fields(p, &a);
    a.q_offsets = values_of<int32_t>(c, "q_offsets");
    copy_score_forms(c, a);
    const Placement q = place_queries(c, a), kv = place_keys(c, a);
    const Extents extents = {{q.outer, q.inner, p.num_heads, p.head_dim}};
    a.q = gather(q, extents, Strides(extents, p.q_layout), p.dtype, c.arrays.at("q").data.data());
    a.k = gather_keys(c, c.arrays.at("k"), c.k_scale, kv, p.k_layout, p.head_dim);
    a.v = gather_keys(c, c.arrays.at("v"), c.v_scale, kv, p.v_layout, p.head_dim_v);
    return a;
}

std::vector<float> out_rows(const Case &c, const Attention &a, const Array &out) {
    const heed_problem &p = c.problem;
    const Placement q = place_queries(c, a);
    const Extents extents = {{q.outer, q.inner, p.num_heads, p.head_dim_v}};
    return gather(q, extents, Strides(extents, p.out_layout), p.dtype, out.data.data());
}

std::vector<float> lse_rows(const Case &c, const Attention &a, const Array &lse) {
    const Placement q = place_queries(c, a);
    std::vector<float> rows(static_cast<size_t>(a.num_rows()));
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t h = 0; h < a.num_heads; h++) {
            for (int64_t i = 0; i < a.q_len_of(b); i++) {
                const Slot &slot = q.at(b, i);
                rows[static_cast<size_t>(a.lse_index(b, h, i))] =
                    lse.as<float>()[(slot.outer * a.num_heads + h) * q.inner + slot.inner];
            }
        }
    }
    return rows;
}

}  // namespace heed_reference
