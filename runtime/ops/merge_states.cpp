// heed_merge_states: gathers the states of a block of rows, then one kernel call per block.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>

#include "cuda/op_session.h"
#include "ops/heap_array.h"
#include "ops/op_rows.h"
#include "ops/op_run.h"
#include "ops/rows.h"
#include "ranges.h"

namespace heed {
namespace {

using cuda::address_of;

struct MergeCall {
    View outs, out;
    View lse;  // [batch, num_heads, q_len, 1], of lse and of each of lses
    const OpKernel *row = nullptr;
    // A block is rows of one sequence along one axis: positions of a head, or heads of a position.
    bool along_heads = false;
    int32_t rows_per_block = 1;
    int64_t blocks_per_line = 1;
    int64_t scratch_floats = 0;  // of one item
};

heed_status check_fields(const heed_merge_args &a) {
    heed_status status = check_float_dtype("dtype", a.dtype);
    if (!status) status = check_execution(&a.execution);
    if (!status) status = check_int("batch", a.batch, 0, INT32_MAX);
    if (!status) status = check_int("q_len", a.q_len, 0, INT32_MAX);
    if (!status) status = check_int("num_heads", a.num_heads, 0, INT32_MAX);
    if (!status) status = check_head_dim("head_dim_v", a.head_dim_v);
    if (!status) status = check_int("num_states", a.num_states, 1, INT32_MAX);
    return status;
}

heed_status check_views(const heed_merge_args &a, MergeCall *call) {
    const Shape shape = {{a.batch, a.q_len, a.num_heads, a.head_dim_v}};
    const heed_layout packed = {};
    heed_status status = make_view("outs", shape, a.outs_layout, Access::read, &call->outs);
    if (!status) status = make_view("out", shape, a.out_layout, Access::write, &call->out);
    if (status) return status;
    return make_view("lse", {{a.batch, a.num_heads, a.q_len, 1}}, packed, Access::write, &call->lse);
}

heed_status check_memory(const heed_merge_args &a, const MergeCall &call) {
    MemoryRanges ranges;
    heed_status status = ranges.add("out", a.out, a.dtype, call.out.span, Access::write);
    if (!status && a.lse.data != nullptr) status = ranges.add("lse", a.lse, HEED_F32, call.lse.span, Access::write);
    if (!status && (a.outs == nullptr || a.lses == nullptr)) {
        return fail(HEED_INVALID_ARGUMENT, "%s is NULL; it must point to num_states (%d) tensors",
                    a.outs == nullptr ? "outs" : "lses", a.num_states);
    }
    if (!status && a.sink != nullptr) status = ranges.add("sink", a.sink, a.num_heads, sizeof(float), Access::read);
    for (int32_t n = 0; n < a.num_states && !status; n++) {
        char name[32];
        const bool in_place = n == 0 && a.outs[0].data == a.out.data && same_layout(call.outs, call.out);
        std::snprintf(name, sizeof(name), "outs[%d]", n);
        status = ranges.add(name, a.outs[n], a.dtype, call.outs.span, Access::read, in_place ? "out" : nullptr);
        std::snprintf(name, sizeof(name), "lses[%d]", n);
        if (!status) status = ranges.add(name, a.lses[n], HEED_F32, call.lse.span, Access::read);
    }
    return status;
}

// One item's memory: what a block gathers and what its kernel leaves between its stages.
struct BlockScratch {
    float *lse, *weights;                          // [state][row]
    float *sink, *row_max, *row_sum, *merged_lse;  // [row]
    char *x;                                       // [row][state][d]

    BlockScratch(float *memory, int32_t rows, int32_t states) {
        const int64_t plane = int64_t{rows} * states;
        lse = memory;
        weights = lse + plane;
        sink = weights + plane;
        row_max = sink + rows;
        row_sum = row_max + rows;
        merged_lse = row_sum + rows;
        x = reinterpret_cast<char *>(merged_lse + rows);
    }
};

void plan_blocks(const heed_merge_args &a, MergeCall *call) {
    const int64_t row_bytes = int64_t{a.num_states} * a.head_dim_v * dtype_bytes(a.dtype);
    call->along_heads = a.num_heads > a.q_len;
    const int32_t line = call->along_heads ? a.num_heads : a.q_len;
    call->rows_per_block = std::min(line, tokens_per_block(row_bytes));
    call->blocks_per_line = (int64_t{line} + call->rows_per_block - 1) / call->rows_per_block;
    const int64_t floats = int64_t{call->rows_per_block} * (2 * int64_t{a.num_states} + 4);
    call->scratch_floats = round_up(floats + (call->rows_per_block * row_bytes + 3) / 4, 32);
}

// Where a block lies: `rows` rows from (b, i, h) on.
struct BlockPlace {
    int64_t b, i, h;
    int32_t rows;
};

BlockPlace place_of(const heed_merge_args &a, const MergeCall &call, int64_t index) {
    const int64_t across = call.along_heads ? a.q_len : a.num_heads, length = call.along_heads ? a.num_heads : a.q_len;
    const int64_t first = index % call.blocks_per_line * call.rows_per_block;
    const int64_t line = index / call.blocks_per_line, b = line / across, other = line % across;
    const auto rows = static_cast<int32_t>(std::min<int64_t>(call.rows_per_block, length - first));
    return call.along_heads ? BlockPlace{b, other, first, rows} : BlockPlace{b, first, other, rows};
}

void gather(const heed_merge_args &a, const MergeCall &call, const BlockPlace &at, const BlockScratch &scratch) {
    const int64_t row_bytes = a.head_dim_v * dtype_bytes(a.dtype);
    const int64_t lse_step = call.along_heads ? a.q_len : 1;
    const int64_t lse_first = (at.b * a.num_heads + at.h) * a.q_len + at.i;
    for (int64_t n = 0; n < a.num_states; n++) {
        const Rows x = rows_of(a.outs[n].data, call.outs, a.dtype, at.b, at.i);
        const auto *lse = static_cast<const float *>(a.lses[n].data) + lse_first;
        for (int64_t r = 0; r < at.rows; r++) {
            const char *from = call.along_heads ? x.at(0, at.h + r) : x.at(r, at.h);
            std::memcpy(scratch.x + (r * a.num_states + n) * row_bytes, from, static_cast<size_t>(row_bytes));
            scratch.lse[n * at.rows + r] = lse[r * lse_step];
        }
    }
    for (int64_t r = 0; r < at.rows; r++) {
        scratch.sink[r] =
            a.sink == nullptr ? -std::numeric_limits<float>::infinity() : a.sink[at.h + (call.along_heads ? r : 0)];
    }
}

void store_lse(const heed_merge_args &a, const MergeCall &call, const BlockPlace &at, const float *merged) {
    if (a.lse.data == nullptr) return;
    auto *lse = static_cast<float *>(a.lse.data) + (at.b * a.num_heads + at.h) * a.q_len + at.i;
    for (int64_t r = 0; r < at.rows; r++) lse[r * (call.along_heads ? a.q_len : 1)] = merged[r];
}

// Rows of `out` that lie further apart than a kernel's strides reach are written one by one.
int call_kernel_rows(const heed_merge_args &a, const MergeCall &call, const BlockPlace &at, float *memory,
                     char (&message)[512]) {
    const BlockScratch s(memory, at.rows, a.num_states);
    gather(a, call, at, s);
    const int64_t bytes = dtype_bytes(a.dtype), stride = call.out.stride[call.along_heads ? 2 : 1];
    const int32_t d = a.head_dim_v, states = a.num_states;
    const Rows out = rows_of(a.out.data, call.out, a.dtype, at.b, at.i);
    const auto column = [&](float *data, int32_t rows) { return KernelBuffer{data, HEED_F32, 1, {rows}, {1}}; };
    const int32_t rows = stride > INT32_MAX ? 1 : at.rows;
    for (int32_t r = 0; r < at.rows; r += rows) {
        const auto plane = [&](float *data) {
            return KernelBuffer{data + r, HEED_F32, 2, {rows, states}, {1, at.rows}};
        };
        char *const first = call.along_heads ? out.at(0, at.h + r) : out.at(r, at.h);
        MergeStatesArguments arguments;
        arguments.x = {
            s.x + int64_t{r} * states * d * bytes, a.dtype, 3, {d, rows, states}, {1, rows > 1 ? states * d : 0, d}};
        arguments.lse = plane(s.lse);
        arguments.sink = column(s.sink + r, rows);
        arguments.row_max = column(s.row_max + r, rows);
        arguments.row_sum = column(s.row_sum + r, rows);
        arguments.weights = plane(s.weights);
        arguments.merged_lse = column(s.merged_lse + r, rows);
        arguments.out = {first, a.dtype, 2, {d, rows}, {1, rows > 1 ? static_cast<int32_t>(stride) : 0}};
        if (const int code = call_op_kernel(*call.row, arguments, message)) return code;
    }
    store_lse(a, call, at, s.merged_lse);
    return 0;
}

heed_status merge(const heed_merge_args &a, const MergeCall &call) {
    const double bytes = static_cast<double>(a.batch) * a.q_len * a.num_heads * a.head_dim_v * (a.num_states + 1.0) *
                         static_cast<double>(dtype_bytes(a.dtype));
    const int64_t lines = int64_t{a.batch} * (call.along_heads ? a.q_len : a.num_heads);
    int64_t num_blocks = 0;
    if (!checked_mul(lines, call.blocks_per_line, &num_blocks)) {
        return fail(HEED_INVALID_ARGUMENT, "out has %" PRId64 " lines of rows; too many for 64 bits", lines);
    }
    const auto threads = static_cast<int32_t>(std::min<int64_t>(op_threads(&a.execution, bytes), num_blocks));
    HeapArray<float> scratch;
    if (const heed_status status = scratch.allocate("heed_merge_states", threads * call.scratch_floats)) return status;
    const auto block = [&](int64_t index, int32_t item, char(&message)[512]) {
        float *const memory = scratch.data() + item * call.scratch_floats;
        return call_kernel_rows(a, call, place_of(a, call, index), memory, message);
    };
    return run_op("heed_merge_states", &a.execution, threads, num_blocks, block);
}

heed_status list_states(const heed_merge_args &a, uint64_t *words) {
    if (a.num_states > max_merge_states) {
        return fail(HEED_UNSUPPORTED, "num_states is %d; CUDA merges up to %d at once", a.num_states, max_merge_states);
    }
    for (int64_t n = 0; n < a.num_states; n++) {
        words[merge_state_words * n] = address_of(a.outs[n].data);
        words[merge_state_words * n + 1] = address_of(a.lses[n].data);
    }
    return HEED_OK;
}

// Whether 16 bytes of every row can be read and written at once.
bool is_wide(const heed_merge_args &a, const MergeCall &call, const uint64_t *words) {
    const auto size = static_cast<uint64_t>(dtype_bytes(a.dtype));
    uint64_t bits = address_of(a.out.data) | static_cast<uint64_t>(a.head_dim_v) * size;
    for (int64_t n = 0; n < a.num_states; n++) bits |= words[merge_state_words * n];
    for (int i = 0; i < 3; i++) bits |= static_cast<uint64_t>(call.outs.stride[i] | call.out.stride[i]) * size;
    return bits % 16 == 0;
}

// One launch for all rows.
heed_status merge_on_cuda(const heed_merge_args &a, const MergeCall &call) {
    cuda::MergeStatesArguments arguments;
    if (const heed_status status = list_states(a, arguments.word.word)) return status;
    int64_t num_rows = 0, elements = 0;
    if (!checked_mul(int64_t{a.batch} * a.q_len, a.num_heads, &num_rows) ||
        !checked_mul(num_rows, a.head_dim_v, &elements) || elements > (int64_t{1} << 30)) {
        return fail(HEED_UNSUPPORTED, "out has %d x %d x %d x %d elements; CUDA merges up to 2^30", a.batch, a.q_len,
                    a.num_heads, a.head_dim_v);
    }
    cuda::OpSession session;
    if (const heed_status status = session.open(a.execution, Op::merge_states, a.dtype, a.dtype)) return status;
    const auto stride = [&](const View &view, int axis) {
        return static_cast<uint64_t>(view.stride[axis] * dtype_bytes(a.dtype));
    };
    arguments.num_states = a.num_states;
    arguments.num_rows = static_cast<int32_t>(num_rows);
    arguments.q_len = a.q_len;
    arguments.num_heads = a.num_heads;
    arguments.head_dim = a.head_dim_v;
    arguments.wide = is_wide(a, call, arguments.word.word);
    arguments.from_batch = stride(call.outs, 0);
    arguments.from_token = stride(call.outs, 1);
    arguments.from_head = stride(call.outs, 2);
    arguments.to_batch = stride(call.out, 0);
    arguments.to_token = stride(call.out, 1);
    arguments.to_head = stride(call.out, 2);
    arguments.out = address_of(a.out.data);
    arguments.lse = address_of(a.lse.data);
    arguments.sink = address_of(a.sink);
    arguments.named = cuda::named(a.out.data);
    return cuda::launch_op(session.row(), arguments, session.launches());
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_merge_states(const heed_merge_args *args) {
    if (args == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_merge_states: args is NULL");
    if (const heed_status status =
            heed::check_struct_size("heed_merge_args", args->struct_size, sizeof(heed_merge_args))) {
        return status;
    }
    const heed_merge_args a = *args;
    heed::MergeCall call;
    heed_status status = heed::check_fields(a);
    if (!status) status = heed::check_views(a, &call);
    if (status || call.out.span == 0) return status;
    status = heed::check_memory(a, call);
    if (!status && a.execution.device == HEED_CUDA) return heed::merge_on_cuda(a, call);
    if (!status) status = heed::find_op_row(heed::Op::merge_states, a.dtype, a.dtype, &call.row);
    if (status) return status;
    heed::plan_blocks(a, &call);
    return heed::merge(a, call);
}
