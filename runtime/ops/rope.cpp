// heed_rope.
#include <cinttypes>

#include "runtime/backend.h"
#include "runtime/float_environment.h"
#include "runtime/ops/op_run.h"
#include "runtime/ops/rope_call.h"
#include "runtime/read_once.h"

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

}  // namespace

heed_status prepare_rope(const heed_rope_args &a, RopeCall *call) {
    heed_status status = check_fields(a);
    if (!status) status = check_memory(a, call);
    if (status || call->out.span == 0) return status;
    return check_positions(a, call->rotation);
}

heed_status run_rope(const heed_rope_args &a, const RopeCall &call) {
    return call.out.span == 0 ? HEED_OK : backend_of(a.execution.device).rope(a, call);
}

}  // namespace heed

extern "C" heed_status heed_rope(const heed_rope_args *args) {
    const heed::DefaultFloatEnvironment environment;
    heed_status status = heed::check_given("heed_rope", "args", "heed_rope_args", args);
    if (status) return status;
    const heed_rope_args a = *args;
    heed::RopeCall call;
    status = heed::prepare_rope(a, &call);
    return status ? status : heed::run_rope(a, call);
}
