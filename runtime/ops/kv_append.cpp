// heed_kv_append: the copies.
#include <algorithm>

#include "cuda/op_session.h"
#include "cuda/token_launches.h"
#include "ops/append_call.h"
#include "ops/op_run.h"

namespace heed {
namespace {

// Destination rows: elements, and scales when quantised.
struct Slots {
    Rows elements, scales;
};

Slots slots_of(const heed_tensor &tensor, const View &view, const heed_tensor &scale, const View &scale_view,
               const AppendSegment &s) {
    return {rows_of(tensor.data, view, tensor.dtype, s.block, s.slot),
            rows_of(scale.data, scale_view, HEED_F32, s.block, s.slot)};
}

int quantise_rows(const AppendCall &call, const Rows &x, const Slots &to, heed_dtype dtype, int32_t head_dim,
                  int32_t num_tokens, int32_t num_heads, char (&message)[512]) {
    return in_kernel_strides(
        x, to.elements, num_tokens, num_heads, [&](int32_t t, int32_t tokens, int32_t h, int32_t heads) {
            const auto buffer = [&](const Rows &rows, heed_dtype type) {
                const int64_t bytes = dtype_bytes(type);
                const auto head = static_cast<int32_t>(heads > 1 ? rows.head_stride / bytes : 0);
                const auto token = static_cast<int32_t>(tokens > 1 ? rows.token_stride / bytes : 0);
                return KernelBuffer{rows.at(t, h), type, 3, {head_dim, heads, tokens}, {1, head, token}};
            };
            KvAppendArguments arguments;
            arguments.x = buffer(x, dtype);
            arguments.codes = buffer(to.elements, HEED_I8);
            arguments.scale = {to.scales.at(t, h), HEED_F32, 2, {heads, tokens}, {1, num_heads}};
            return call_op_kernel(*call.quantise, arguments, message);
        });
}

// Keys are rotated and rounded to their dtype before they are quantised, so that the codes are those of heed_rope
// followed by an append.
int rotate_and_quantise(const heed_kv_append_args &a, const AppendCall &call, const Rows &x, const Slots &to,
                        const TablePlace &place, int32_t num_tokens, char (&message)[512]) {
    alignas(64) char rotated[block_bytes];
    const int64_t row_bytes = a.cache.head_dim * dtype_bytes(a.dtype);
    const auto most = static_cast<int32_t>(block_bytes / row_bytes);
    for (int32_t t = 0; t < num_tokens; t++) {
        for (int32_t h = 0; h < a.cache.num_kv_heads; h += most) {
            const int32_t heads = std::min(most, a.cache.num_kv_heads - h);
            const Rows from = {x.at(t, h), x.token_stride, x.head_stride}, between = {rotated, 0, row_bytes};
            const TablePlace at = {place.positions == nullptr ? nullptr : place.positions + t, place.first + t};
            int code = rotate_rows(call.rotation, from, between, at, 1, heads, message);
            const Slots slots = {{to.elements.at(t, h), 0, to.elements.head_stride},
                                 {to.scales.at(t, h), 0, to.scales.head_stride}};
            if (!code) code = quantise_rows(call, between, slots, a.dtype, a.cache.head_dim, 1, heads, message);
            if (code) return code;
        }
    }
    return 0;
}

int append_segment(const heed_kv_append_args &a, const AppendCall &call, const AppendSegment &s, char (&message)[512]) {
    const heed_kv_view &c = a.cache;
    const Rows k = rows_of(a.k_new.data, call.k_new, a.dtype, s.sequence, s.first_token);
    const Rows v = rows_of(a.v_new.data, call.v_new, a.dtype, s.sequence, s.first_token);
    const Slots k_to = slots_of(c.k, call.cache.k, c.k_scale, call.cache.k_scale, s);
    const Slots v_to = slots_of(c.v, call.cache.v, c.v_scale, call.cache.v_scale, s);
    const int32_t *const positions = call.rotation.positions;
    const TablePlace place = {
        positions == nullptr ? nullptr : positions + int64_t{s.sequence} * a.new_len + s.first_token, s.first_position};
    if (!call.cache.quantised) {
        copy_rows(v, v_to.elements, s.num_tokens, c.num_kv_heads, c.head_dim_v * dtype_bytes(a.dtype));
        return rotate_rows(call.rotation, k, k_to.elements, place, s.num_tokens, c.num_kv_heads, message);
    }
    const int code = quantise_rows(call, v, v_to, a.dtype, c.head_dim_v, s.num_tokens, c.num_kv_heads, message);
    if (code) return code;
    if (call.rotation.num_pairs > 0) return rotate_and_quantise(a, call, k, k_to, place, s.num_tokens, message);
    return quantise_rows(call, k, k_to, a.dtype, c.head_dim, s.num_tokens, c.num_kv_heads, message);
}

heed_status append_on_cuda(const heed_kv_append_args &a, const AppendCall &call) {
    if (call.num_segments == 0) return HEED_OK;
    const heed_kv_view &c = a.cache;
    cuda::OpSession session;
    const Op op = call.cache.quantised ? Op::kv_append : Op::rope;
    heed_status status = session.open(a.execution, op, a.dtype, call.cache.quantised ? HEED_I8 : a.dtype);
    if (status) return status;
    cuda::TokenMoves k({&session.row(), c.num_kv_heads, c.head_dim, &call.rotation}, session.launches());
    cuda::TokenMoves v({&session.row(), c.num_kv_heads, c.head_dim_v}, session.launches());
    for (int64_t i = 0; i < call.num_segments && !status; i++) {
        const AppendSegment &s = call.segments[i];
        const Slots k_to = slots_of(c.k, call.cache.k, c.k_scale, call.cache.k_scale, s);
        const Slots v_to = slots_of(c.v, call.cache.v, c.v_scale, call.cache.v_scale, s);
        const int32_t *positions = call.rotation.positions;
        if (positions != nullptr) positions += int64_t{s.sequence} * a.new_len + s.first_token;
        status = k.add({rows_of(a.k_new.data, call.k_new, a.dtype, s.sequence, s.first_token), k_to.elements,
                        reinterpret_cast<float *>(k_to.scales.data), s.num_tokens, positions, s.first_position});
        if (status) return status;
        status = v.add({rows_of(a.v_new.data, call.v_new, a.dtype, s.sequence, s.first_token), v_to.elements,
                        reinterpret_cast<float *>(v_to.scales.data), s.num_tokens});
    }
    if (!status) status = k.flush();
    return status ? status : v.flush();
}

heed_status append_on_cpu(const heed_kv_append_args &a, const AppendCall &call) {
    const double token_bytes = 2.0 * a.cache.num_kv_heads * (a.cache.head_dim + a.cache.head_dim_v) *
                               static_cast<double>(dtype_bytes(a.dtype));
    const int32_t threads = op_threads(&a.execution, token_bytes * static_cast<double>(call.num_tokens));
    const auto block = [&](int64_t index, int32_t, char(&message)[512]) {
        return append_segment(a, call, call.segments[index], message);
    };
    return run_op("heed_kv_append", &a.execution, threads, call.num_segments, block);
}

heed_status append(const heed_kv_append_args &a, const AppendCall &call) {
    const heed_status status = a.execution.device == HEED_CUDA ? append_on_cuda(a, call) : append_on_cpu(a, call);
    if (status) return status;
    for (int32_t b = 0; b < a.cache.batch; b++) a.cache.kv_lens[b] = call.lengths[b].kv_len + call.lengths[b].new_len;
    return HEED_OK;
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_kv_append(const heed_kv_append_args *args) {
    if (args == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_kv_append: args is NULL");
    if (const heed_status status =
            heed::check_struct_size("heed_kv_append_args", args->struct_size, sizeof(heed_kv_append_args))) {
        return status;
    }
    heed_kv_append_args a = *args;
    heed_rope_tables rope = {};
    if (a.rope != nullptr) {
        rope = *a.rope;
        a.rope = &rope;
    }
    heed::AppendCall call(a.execution);
    const heed_status status = heed::check_append(a, &call);
    return status ? status : heed::append(a, call);
}
