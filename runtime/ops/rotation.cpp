#include "runtime/ops/rotation.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "runtime/backend.h"
#include "runtime/view.h"

namespace heed {
namespace {

// A row as (pair, part) of each head and token.
KernelBuffer pair_buffer(const Rotation &r, const Rows &rows, int32_t num_heads, int32_t num_tokens) {
    const int64_t bytes = dtype_bytes(r.dtype);
    // Strides of one head or token are not used and may be any.
    const auto head = static_cast<int32_t>(num_heads > 1 ? rows.head_stride / bytes : 0);
    const auto token = static_cast<int32_t>(num_tokens > 1 ? rows.token_stride / bytes : 0);
    return {rows.data,
            r.dtype,
            4,
            {r.num_pairs, 2, num_heads, num_tokens},
            {r.interleaved ? 2 : 1, r.interleaved ? 1 : r.num_pairs, head, token}};
}

int rotate_pairs(const Rotation &r, const Rows &x, const Rows &out, const TablePlace &place, int32_t num_tokens,
                 int32_t num_heads, char (&message)[512]) {
    static const int32_t zero = 0;
    const bool listed = place.positions != nullptr;
    const int64_t offset = listed ? 0 : place.first * r.num_pairs;
    const auto rows = static_cast<int32_t>(listed ? std::min(r.table_rows, max_int32) : num_tokens);
    const auto table = [&](const float *data) { return packed_buffer(data + offset, HEED_F32, {r.num_pairs, rows}); };
    RopeArguments arguments;
    arguments.x = pair_buffer(r, x, num_heads, num_tokens);
    arguments.cos = table(r.cos);
    arguments.sin = table(r.sin);
    arguments.positions = {
        const_cast<int32_t *>(listed ? place.positions : &zero), HEED_I32, 1, {num_tokens}, {listed ? 1 : 0}};
    arguments.position_step = listed ? 0 : 1;
    arguments.direction = r.direction;
    arguments.out = pair_buffer(r, out, num_heads, num_tokens);
    return call_op_kernel(*r.kernel, arguments, message);
}

}  // namespace

heed_status check_tables(const char *name, const heed_rope_tables &tables, int32_t head_dim) {
    char field[64];
    std::snprintf(field, sizeof(field), "%s.interleaved", name);
    if (const heed_status status = check_flag(field, &tables.interleaved)) return status;
    std::snprintf(field, sizeof(field), "%s.max_position", name);
    if (const heed_status status = check_int(field, tables.max_position, 0, max_int32)) return status;
    if (tables.rotary_dim < 0 || tables.rotary_dim > head_dim || tables.rotary_dim % 2 != 0) {
        return fail(HEED_INVALID_ARGUMENT, "%s.rotary_dim is %d; it must be even and 0..%d, the head_dim", name,
                    tables.rotary_dim, head_dim);
    }
    return HEED_OK;
}

heed_status make_rotation(const char *name, heed_device device, const heed_rope_tables &tables, heed_dtype dtype,
                          int32_t head_dim, int64_t table_rows, int64_t num_positions, MemoryRanges *ranges,
                          Rotation *rotation) {
    char cos[64], sin[64], positions[64];
    std::snprintf(cos, sizeof(cos), "%s.cos", name);
    std::snprintf(sin, sizeof(sin), "%s.sin", name);
    std::snprintf(positions, sizeof(positions), "%s.positions", name);
    Rotation r = {};
    r.dtype = dtype;
    r.head_dim = head_dim;
    r.num_pairs = tables.rotary_dim / 2;
    r.interleaved = tables.interleaved;
    r.cos = static_cast<const float *>(tables.cos.data);
    r.sin = static_cast<const float *>(tables.sin.data);
    r.table_rows = table_rows;
    *rotation = r;
    if (r.num_pairs == 0) return HEED_OK;
    rotation->positions = tables.positions;
    int64_t elements = 0;
    if (!checked_mul(table_rows, r.num_pairs, &elements)) {
        return fail(HEED_INVALID_ARGUMENT, "%s of [%" PRId64 ", %d] elements reaches beyond 2^63-1 elements", cos,
                    table_rows, r.num_pairs);
    }
    heed_status status = ranges->add(cos, tables.cos, HEED_F32, elements, Access::read);
    if (!status) status = ranges->add(sin, tables.sin, HEED_F32, elements, Access::read);
    if (!status && tables.positions != nullptr) {
        status = ranges->add(positions, tables.positions, num_positions, sizeof(int32_t), Access::read);
    }
    return status ? status : backend_of(device).find_rotation(dtype, rotation);
}

int rotate_rows(const Rotation &r, const Rows &x, const Rows &out, const TablePlace &place, int32_t num_tokens,
                int32_t num_heads, char (&message)[512]) {
    const int64_t bytes = dtype_bytes(r.dtype), rotated_bytes = 2 * int64_t{r.num_pairs} * bytes;
    const int64_t rest_bytes = r.head_dim * bytes - rotated_bytes;
    if (rest_bytes > 0 && x.data != out.data) {
        const Rows from = {x.data + rotated_bytes, x.token_stride, x.head_stride};
        const Rows to = {out.data + rotated_bytes, out.token_stride, out.head_stride};
        copy_rows(from, to, num_tokens, num_heads, rest_bytes);
    }
    if (r.num_pairs == 0) return 0;
    return in_kernel_strides(x, out, num_tokens, num_heads, [&](int32_t t, int32_t tokens, int32_t h, int32_t heads) {
        const Rows from = {x.at(t, h), x.token_stride, x.head_stride};
        const Rows to = {out.at(t, h), out.token_stride, out.head_stride};
        const TablePlace part = {place.positions == nullptr ? nullptr : place.positions + t, place.first + t};
        return rotate_pairs(r, from, to, part, tokens, heads, message);
    });
}

}  // namespace heed
