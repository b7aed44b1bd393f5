#include "runtime/reference/case_call.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "heed/fields.h"
#include "runtime/reference/case_arrays.h"

namespace heed_reference {
namespace {

heed_tensor view_of(const Array &array, heed_dtype dtype) {
    return {const_cast<unsigned char *>(array.data.data()), array.size(), dtype};
}

}  // namespace

std::vector<int64_t> out_shape(const Case &c) {
    const heed_problem &p = c.problem;
    const bool varlen = p.q_storage == HEED_Q_VARLEN;
    std::vector<int64_t> shape;
    for (const char axis : axes_without(c.layouts.out, varlen ? "b" : "")) {
        const int64_t tokens = varlen ? p.total_q : p.max_q_len;
        shape.push_back(axis == 'b' ? p.batch : axis == 's' ? tokens : axis == 'h' ? p.num_heads : p.head_dim_v);
    }
    return shape;
}

Array make_out(const Case &c) {
    const ElementType q_type = c.arrays.at("q").type;
    Array out = make_array(q_type, out_shape(c));
    if (q_type == ElementType::f32) {
        std::fill_n(out.as<float>(), out.size(), std::numeric_limits<float>::quiet_NaN());
    } else {
        std::fill_n(out.as<uint16_t>(), out.size(), uint16_t{0x7fff});  // a NaN in f16 and in bf16
    }
    return out;
}

Array make_lse(const Case &c) {
    const heed_problem &p = c.problem;
    std::vector<int64_t> shape = {p.batch, p.num_heads, p.max_q_len};
    if (p.q_storage == HEED_Q_VARLEN) shape = {p.num_heads, p.total_q};
    Array lse = make_array(ElementType::f32, shape);
    std::fill_n(lse.as<float>(), lse.size(), std::numeric_limits<float>::quiet_NaN());
    return lse;
}

heed_args make_args(const Case &c, Array &out, Array &lse) {
    const heed_problem &p = c.problem;
    const auto view = [&](const char *name, heed_dtype dtype) {
        return c.has(name) ? view_of(c.arrays.at(name), dtype) : heed_tensor{nullptr, 0, dtype};
    };
    const auto set = [&](const char *name, auto *pointer) {
        if (c.has(name)) *pointer = c.arrays.at(name).as<std::remove_reference_t<decltype(**pointer)>>();
    };
    heed_args args;
    heed_args_init(&args);
    args.q = view("q", p.dtype);
    args.k = view("k", p.kv_dtype);
    args.v = view("v", p.kv_dtype);
    args.mask = view("mask", HEED_U8);
    args.bias = view("bias", p.bias_dtype);
    args.k_scale = view_of(c.k_scale, HEED_F32);
    args.v_scale = view_of(c.v_scale, HEED_F32);
    args.out = view_of(out, p.dtype);
    if (p.want_lse) args.lse = view_of(lse, HEED_F32);
#define HEED_SET(name, ...) set(#name, &args.name);
    HEED_METADATA_ARRAYS(HEED_SET)
    HEED_HEAD_ARRAYS(HEED_SET)
#undef HEED_SET
    args.dropout_seed = c.dropout_seed;
    args.dropout_offset = c.dropout_offset;
    return args;
}

}  // namespace heed_reference
