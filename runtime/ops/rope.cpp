// heed_rope.
#include <cinttypes>

#include "cuda/op_session.h"
#include "cuda/token_launches.h"
#include "ops/op_run.h"
#include "ops/rope_call.h"
#include "read_once.h"

namespace heed {
namespace {

heed_status check_fields(const heed_rope_args &a) {
    heed_status status = check_float_dtype("dtype", a.dtype);
    if (!status) status = check_execution(&a.execution);
    if (!status) status = check_int("batch", a.batch, 0, INT32_MAX);
    if (!status) status = check_int("len", a.len, 0, INT32_MAX);
    if (!status) status = check_int("num_heads", a.num_heads, 0, INT32_MAX);
    if (!status) status = check_head_dim("head_dim", a.head_dim);
    return status ? status : check_tables("tables", a.tables, a.head_dim);
}

heed_status check_memory(const heed_rope_args &a, RopeCall *call) {
    const Shape shape = {{a.batch, a.len, a.num_heads, a.head_dim}};
    heed_status status = make_view("x", shape, a.x_layout, Access::read, &call->x);
    if (!status) status = make_view("out", shape, a.out_layout, Access::write, &call->out);
    if (status || call->out.span == 0) return status;
    const int64_t num_tokens = int64_t{a.batch} * a.len;
    const int64_t table_rows = a.tables.positions != nullptr ? a.tables.max_position : num_tokens;
    const bool in_place = a.x.data == a.out.data && same_layout(call->x, call->out);
    MemoryRanges ranges;
    status = ranges.add("out", a.out, a.dtype, call->out.span, Access::write);
    if (!status) status = ranges.add("x", a.x, a.dtype, call->x.span, Access::read, in_place ? "out" : nullptr);
    return status ? status
                  : make_rotation("tables", a.execution.device, a.tables, a.dtype, a.head_dim, table_rows, num_tokens,
                                  &ranges, &call->rotation);
}

// The kernel clamps what it reads again: a change meanwhile gives wrong numbers, no access outside.
heed_status check_positions(const heed_rope_args &a, const Rotation &rotation) {
    const int32_t *const positions = rotation.positions;
    if (positions == nullptr) return HEED_OK;
    for (int64_t i = 0; i < int64_t{a.batch} * a.len; i++) {
        const int32_t position = read_once(positions[i]);
        if (position >= 0 && position < a.tables.max_position) continue;
        return fail(HEED_INVALID_ARGUMENT,
                    "tables.positions[%" PRId64 "][%" PRId64 "] is %d; it must be 0 or more, below max_position, %d",
                    i / a.len, i % a.len, position, a.tables.max_position);
    }
    return HEED_OK;
}

heed_status rotate_on_cuda(const heed_rope_args &a, const RopeCall &call) {
    cuda::OpSession session;
    heed_status status = session.open(a.execution, Op::rope, a.dtype, a.dtype);
    if (status) return status;
    cuda::TokenMoves moves({&session.row(), a.num_heads, a.head_dim, &call.rotation}, session.launches());
    for (int64_t b = 0; b < a.batch && !status; b++) {
        const int32_t *const positions = call.rotation.positions;
        status = moves.add({rows_of(a.x.data, call.x, a.dtype, b, 0), rows_of(a.out.data, call.out, a.dtype, b, 0),
                            nullptr, a.len, positions == nullptr ? nullptr : positions + b * a.len, b * a.len});
    }
    return status ? status : moves.flush();
}

}  // namespace

heed_status prepare_rope(const heed_rope_args &a, RopeCall *call) {
    heed_status status = check_fields(a);
    if (!status) status = check_memory(a, call);
    if (status || call->out.span == 0) return status;
    return check_positions(a, call->rotation);
}

heed_status run_rope(const heed_rope_args &a, const RopeCall &call) {
    if (call.out.span == 0) return HEED_OK;
    if (a.execution.device == HEED_CUDA) return rotate_on_cuda(a, call);
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

}  // namespace heed

extern "C" heed_status heed_rope(const heed_rope_args *args) {
    if (args == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_rope: args is NULL");
    if (const heed_status status =
            heed::check_struct_size("heed_rope_args", args->struct_size, sizeof(heed_rope_args))) {
        return status;
    }
    const heed_rope_args a = *args;
    heed::RopeCall call;
    const heed_status status = heed::prepare_rope(a, &call);
    return status ? status : heed::run_rope(a, call);
}
