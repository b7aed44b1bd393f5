// heed_merge_states on the CPU: gathers the states of a block of rows, then one kernel call per block.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <limits>

#include "runtime/backends.h"
#include "runtime/ops/heap_array.h"
#include "runtime/ops/merge_call.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/ops/op_run.h"
#include "runtime/ops/rows.h"

namespace heed {
namespace {

// A block is rows of one sequence along one axis: positions of a head, or heads of a position.
struct Blocks : MergeCall {
    const OpKernel *kernel = nullptr;
    bool along_heads = false;
    int32_t rows_per_block = 1;
    int64_t blocks_per_line = 1;
    int64_t scratch_floats = 0;  // of one item
};

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

void plan_blocks(const heed_merge_args &a, Blocks *call) {
    const int64_t row_bytes = int64_t{a.num_states} * a.head_dim_v * dtype_bytes(a.dtype);
    call->along_heads = a.num_heads > a.q_len;
    const int32_t line = call->along_heads ? a.num_heads : a.q_len;
    call->rows_per_block = std::min(line, tokens_per_block(row_bytes));
    call->blocks_per_line = (int64_t{line} + call->rows_per_block - 1) / call->rows_per_block;
    const int64_t floats = int64_t{call->rows_per_block} * (2 * int64_t{a.num_states} + 4);
    call->scratch_floats = round_up(floats + (call->rows_per_block * row_bytes + 3) / 4, 32);
}

// Where a block is: `rows` rows from (b, i, h) on.
struct BlockPlace {
    int64_t b, i, h;
    int32_t rows;
};

BlockPlace place_of(const heed_merge_args &a, const Blocks &call, int64_t index) {
    const int64_t across = call.along_heads ? a.q_len : a.num_heads, length = call.along_heads ? a.num_heads : a.q_len;
    const int64_t first = index % call.blocks_per_line * call.rows_per_block;
    const int64_t line = index / call.blocks_per_line, b = line / across, other = line % across;
    const auto rows = static_cast<int32_t>(std::min<int64_t>(call.rows_per_block, length - first));
    return call.along_heads ? BlockPlace{b, other, first, rows} : BlockPlace{b, first, other, rows};
}

void gather(const heed_merge_args &a, const Blocks &call, const BlockPlace &at, const BlockScratch &scratch) {
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

void store_lse(const heed_merge_args &a, const Blocks &call, const BlockPlace &at, const float *merged) {
    if (a.lse.data == nullptr) return;
    auto *lse = static_cast<float *>(a.lse.data) + (at.b * a.num_heads + at.h) * a.q_len + at.i;
    for (int64_t r = 0; r < at.rows; r++) lse[r * (call.along_heads ? a.q_len : 1)] = merged[r];
}

// Rows of `out` that are further apart than a kernel's strides reach are written one by one.
int call_kernel_rows(const heed_merge_args &a, const Blocks &call, const BlockPlace &at, float *memory,
                     char (&message)[512]) {
    const BlockScratch s(memory, at.rows, a.num_states);
    gather(a, call, at, s);
    const int64_t bytes = dtype_bytes(a.dtype), stride = call.out.stride[call.along_heads ? 2 : 1];
    const int32_t d = a.head_dim_v, states = a.num_states;
    const Rows out = rows_of(a.out.data, call.out, a.dtype, at.b, at.i);
    const int32_t rows = stride > INT32_MAX ? 1 : at.rows;
    const auto column = [&](float *data) { return packed_buffer(data, HEED_F32, {rows}); };
    for (int32_t r = 0; r < at.rows; r += rows) {
        const auto plane = [&](float *data) {
            return KernelBuffer{data + r, HEED_F32, 2, {rows, states}, {1, at.rows}};
        };
        char *const first = call.along_heads ? out.at(0, at.h + r) : out.at(r, at.h);
        MergeStatesArguments arguments;
        arguments.x = {
            s.x + int64_t{r} * states * d * bytes, a.dtype, 3, {d, rows, states}, {1, rows > 1 ? states * d : 0, d}};
        arguments.lse = plane(s.lse);
        arguments.sink = column(s.sink + r);
        arguments.row_max = column(s.row_max + r);
        arguments.row_sum = column(s.row_sum + r);
        arguments.weights = plane(s.weights);
        arguments.merged_lse = column(s.merged_lse + r);
        arguments.out = {first, a.dtype, 2, {d, rows}, {1, rows > 1 ? static_cast<int32_t>(stride) : 0}};
        if (const int code = call_op_kernel(*call.kernel, arguments, message)) return code;
    }
    store_lse(a, call, at, s.merged_lse);
    return 0;
}

}  // namespace

heed_status CpuBackend::merge_states(const heed_merge_args &a, const MergeCall &checked) const {
    Blocks call = {checked};
    if (const heed_status status = find_op_kernel(Op::merge_states, a.dtype, a.dtype, &call.kernel)) return status;
    plan_blocks(a, &call);
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

}  // namespace heed
