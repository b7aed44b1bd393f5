// Tokens on their way on the CPU: rotations, appends to a cache, copies within it.
#include <algorithm>

#include "runtime/backends.h"
#include "runtime/ops/append_call.h"
#include "runtime/ops/copy_call.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/ops/op_run.h"
#include "runtime/ops/rope_call.h"

namespace heed {
namespace {

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

// What the saved sources may take together, unless one token of each takes more.
constexpr int64_t saved_bytes = 1 << 20;

// On the threads of the execution.
struct CpuCopies {
    const CopyCall &call;
    const heed_execution *execution;
    int32_t threads;

    template <typename Visit>
    heed_status run(int64_t count, const Visit &visit) const {
        const auto copy = [this](int32_t p, const Rows &from, const Rows &to, int32_t tokens) {
            copy_rows(from, to, tokens, call.num_heads, call.planes[p].row_bytes);
        };
        return run_op("heed_kv_copy", execution, threads, count, [&](int64_t index, int32_t, char(&)[512]) {
            visit(index, copy);
            return 0;
        });
    }
};

}  // namespace

heed_status CpuBackend::find_rotation(heed_dtype dtype, Rotation *rotation) const {
    return find_op_kernel(Op::rope, dtype, dtype, &rotation->kernel);
}

heed_status CpuBackend::rope(const heed_rope_args &a, const RopeCall &call) const {
    const int64_t token_bytes = int64_t{a.num_heads} * a.head_dim * dtype_bytes(a.dtype);
    const int32_t tokens = tokens_per_block(token_bytes);
    const int64_t blocks_per_sequence = (int64_t{a.len} + tokens - 1) / tokens;
    const auto block = [&](int64_t index, int32_t, char(&message)[512]) {
        const int64_t b = index / blocks_per_sequence, t = index % blocks_per_sequence * tokens;
        const int64_t token = b * a.len + t;
        const int32_t *positions = call.rotation.positions;
        return rotate_rows(call.rotation, rows_of(a.x.data, call.x, a.dtype, b, t),
                           rows_of(a.out.data, call.out, a.dtype, b, t),
                           {positions == nullptr ? nullptr : positions + token, token},
                           static_cast<int32_t>(a.len - t < tokens ? a.len - t : tokens), a.num_heads, message);
    };
    const double bytes = 2.0 * static_cast<double>(token_bytes) * a.batch * a.len;
    return run_op("heed_rope", &a.execution, op_threads(&a.execution, bytes), a.batch * blocks_per_sequence, block);
}

OpMemory CpuBackend::list_memory(const heed_execution &execution) const { return OpMemory(execution); }

heed_status CpuBackend::prepare_append(const heed_kv_append_args &a, AppendCall *call) const {
    const heed_kv_view &c = a.cache;
    const int64_t token_bytes = int64_t{c.num_kv_heads} * (int64_t{c.head_dim} + c.head_dim_v) * dtype_bytes(a.dtype);
    call->tokens_per_segment = tokens_per_block(token_bytes);
    return call->cache.quantised ? find_op_kernel(Op::kv_append, a.dtype, HEED_I8, &call->quantise) : HEED_OK;
}

heed_status CpuBackend::append(const heed_kv_append_args &a, const AppendCall &call) const {
    const double token_bytes = 2.0 * a.cache.num_kv_heads * (a.cache.head_dim + a.cache.head_dim_v) *
                               static_cast<double>(dtype_bytes(a.dtype));
    const int32_t threads = op_threads(&a.execution, token_bytes * static_cast<double>(call.num_tokens));
    const auto block = [&](int64_t index, int32_t, char(&message)[512]) {
        return append_segment(a, call, call.segments[index], message);
    };
    return run_op("heed_kv_append", &a.execution, threads, call.num_segments, block);
}

heed_status CpuBackend::add_copy_workspace(const heed_execution *, MemoryRanges *) const { return HEED_OK; }

heed_status CpuBackend::find_copy_memory(const heed_execution *, int64_t least, CopyCall *call) const {
    call->saved_tokens = call->tokens_in(saved_bytes, least);
    const heed_status status = call->saved_on_heap.allocate("heed_kv_copy", least * call->saved_tokens);
    call->saved = call->saved_on_heap.data();
    return status;
}

heed_status CpuBackend::copy(const CopyCall &call, const heed_execution *execution) const {
    double tokens = 0;
    for (int64_t i = 0; i < call.num_ranges; i++) tokens += call.ranges[i].count;
    const int32_t threads = op_threads(execution, 2 * tokens * static_cast<double>(call.token_bytes));
    return copy_all(call, CpuCopies{call, execution, threads});
}

}  // namespace heed
