// heed_execute: all checks of pointers and values, the private copy of the metadata, then one kernel call.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <limits>

#include "halide_bridge.h"
#include "plan.h"
#include "status.h"

namespace heed {
namespace {

constexpr int64_t min_int32 = std::numeric_limits<int32_t>::min();

// The bytes that one argument occupies; begin == end when it has none.
struct ByteRange {
    const char *name;
    uintptr_t begin, end;
};

// All ranges of one call. The first num_written are written to.
struct ByteRanges {
    ByteRange list[16];
    int32_t count = 0;
    int32_t num_written = 0;
};

heed_status add_range(const char *name, const void *data, int64_t bytes, int64_t alignment, ByteRanges *ranges) {
    if (bytes == 0) return HEED_OK;
    if (data == nullptr)
        return fail(HEED_INVALID_ARGUMENT, "%s is NULL; it must point to %" PRId64 " bytes", name, bytes);
    const auto begin = reinterpret_cast<uintptr_t>(data);
    if (begin % static_cast<uintptr_t>(alignment) != 0) {
        return fail(HEED_INVALID_ARGUMENT, "%s is at %p; it must be aligned to %" PRId64 " bytes", name, data,
                    alignment);
    }
    uintptr_t end = 0;
    if (__builtin_add_overflow(begin, static_cast<uintptr_t>(bytes), &end)) {
        return fail(HEED_INVALID_ARGUMENT, "%s at %p with %" PRId64 " bytes wraps around the address space", name, data,
                    bytes);
    }
    ranges->list[ranges->count++] = {name, begin, end};
    return HEED_OK;
}

heed_status add_tensor(const char *name, const heed_tensor &tensor, heed_dtype dtype, const View &view,
                       ByteRanges *ranges) {
    if (view.span == 0) return HEED_OK;
    if (tensor.dtype != dtype) {
        return fail(HEED_INVALID_ARGUMENT, "%s.dtype is %d; the plan has %s (%d)", name, static_cast<int>(tensor.dtype),
                    dtype_name(dtype), static_cast<int>(dtype));
    }
    if (tensor.data != nullptr && tensor.size < view.span) {
        return fail(HEED_INVALID_ARGUMENT, "%s.size is %" PRId64 "; its layout spans %" PRId64 " elements", name,
                    tensor.size, view.span);
    }
    return add_range(name, tensor.data, view.span * dtype_bytes(dtype), dtype_bytes(dtype), ranges);
}

heed_status check_overlaps(const ByteRanges &ranges) {
    for (int32_t i = 0; i < ranges.num_written; i++) {
        for (int32_t j = i + 1; j < ranges.count; j++) {
            const ByteRange &a = ranges.list[i], &b = ranges.list[j];
            if (a.begin < b.end && b.begin < a.end) {
                return fail(HEED_INVALID_ARGUMENT, "%s overlaps %s; what is written may overlap nothing else", a.name,
                            b.name);
            }
        }
    }
    return HEED_OK;
}

heed_status check_workspace(const heed_plan &plan, const heed_args &args, ByteRanges *ranges) {
    const int64_t needed = plan.workspace.total;
    if (args.workspace_bytes < static_cast<size_t>(needed)) {
        return fail(HEED_WORKSPACE_TOO_SMALL, "workspace_bytes is %zu; the plan needs %" PRId64, args.workspace_bytes,
                    needed);
    }
    return add_range("workspace", args.workspace, needed, scratch_alignment, ranges);
}

// Pointers, capacities, alignment, overlaps; nothing is read through them yet.
heed_status check_pointers(const heed_plan &plan, const heed_args &args) {
    const heed_problem &p = plan.problem;
    const ProblemViews &views = plan.views;
    const int64_t batch_bytes = int64_t{p.batch} * static_cast<int64_t>(sizeof(int32_t));
    ByteRanges ranges;
    heed_status status = add_tensor("out", args.out, p.dtype, views.out, &ranges);
    if (!status && p.want_lse) status = add_tensor("lse", args.lse, HEED_F32, views.lse, &ranges);
    if (!status) status = check_workspace(plan, args, &ranges);
    ranges.num_written = ranges.count;
    if (!status) status = add_tensor("q", args.q, p.dtype, views.q, &ranges);
    if (!status) status = add_tensor("k", args.k, p.kv_dtype, views.k, &ranges);
    if (!status) status = add_tensor("v", args.v, p.kv_dtype, views.v, &ranges);
    if (!status && p.has_mask) status = add_tensor("mask", args.mask, HEED_U8, views.mask, &ranges);
    if (!status && p.has_bias) status = add_tensor("bias", args.bias, p.bias_dtype, views.bias, &ranges);
    if (!status && p.has_kv_lens) status = add_range("kv_lens", args.kv_lens, batch_bytes, sizeof(int32_t), &ranges);
    if (!status && p.position == HEED_EXPLICIT) {
        status = add_range("q_offsets", args.q_offsets, batch_bytes, sizeof(int32_t), &ranges);
    }
    return status ? status : check_overlaps(ranges);
}

heed_status check_call(const heed_plan *plan, const heed_args *args) {
    if (plan == nullptr) return fail(HEED_INVALID_ARGUMENT, "heed_execute: plan is NULL");
    if (args == nullptr) return fail(HEED_INVALID_ARGUMENT, "heed_execute: args is NULL");
    if (args->struct_size == 0)
        return fail(HEED_INVALID_ARGUMENT, "heed_args.struct_size is 0; call heed_args_init first");
    if (args->struct_size != sizeof(heed_args)) {
        return fail(HEED_INVALID_ARGUMENT, "heed_args.struct_size is %u; this library (%s) knows %zu",
                    args->struct_size, heed_version(), sizeof(heed_args));
    }
    if (args->num_threads < 0 || args->num_threads > plan->problem.max_threads) {
        return fail(HEED_INVALID_ARGUMENT, "num_threads is %d; it must be 0 or 1..%d, the plan's max_threads",
                    args->num_threads, plan->problem.max_threads);
    }
    if (args->pool != nullptr && args->pool->run == nullptr) {
        return fail(HEED_INVALID_ARGUMENT, "pool->run is NULL; it must be a function, or pool NULL for Heed's threads");
    }
    return HEED_OK;
}

// What a sequence's rows see, with causal, window and position folded in: row i sees the keys
// [max(0, i + visible_begin), min(kv_len, i + visible_end)). 64-bit inside; the clamps change no visible set, since
// 0 <= i and i + kv_len < 2^31.
void resolve_sequence(const heed_problem &p, int64_t kv_len, int64_t q_offset, int32_t seq[num_seq_fields]) {
    int64_t offset = 0;
    if (p.position == HEED_BOTTOM_RIGHT) offset = kv_len - p.max_q_len;
    if (p.position == HEED_EXPLICIT) offset = q_offset;
    int64_t begin = min_int32, end = kv_len;
    if (p.window_left >= 0) begin = std::clamp(offset - p.window_left, min_int32, kv_len);
    if (p.causal || p.window_right >= 0) {
        const int64_t right = p.causal ? 0 : p.window_right;
        end = std::clamp(offset + right + 1, min_int32, kv_len);
    }
    seq[seq_kv_len] = static_cast<int32_t>(kv_len);
    seq[seq_visible_begin] = static_cast<int32_t>(begin);
    seq[seq_visible_end] = static_cast<int32_t>(end);
    seq[seq_position_offset] = static_cast<int32_t>(offset);
}

// Reads each value of the caller's metadata once. `seq` is NULL when only the values are checked.
heed_status resolve_metadata(const heed_plan &plan, const heed_args &args, int32_t *seq, int64_t *total_keys) {
    const heed_problem &p = plan.problem;
    *total_keys = 0;
    for (int32_t b = 0; b < p.batch; b++) {
        const volatile int32_t *const lens = args.kv_lens, *const offsets = args.q_offsets;
        const int32_t kv_len = p.has_kv_lens ? lens[b] : p.max_kv_len;
        const int32_t q_offset = p.position == HEED_EXPLICIT ? offsets[b] : 0;
        if (kv_len < 0 || kv_len > p.max_kv_len) {
            return fail(HEED_INVALID_ARGUMENT, "kv_lens[%d] is %d; it must be 0..%d, the plan's max_kv_len", b, kv_len,
                        p.max_kv_len);
        }
        *total_keys += kv_len;
        if (seq != nullptr) resolve_sequence(p, kv_len, q_offset, seq + int64_t{b} * num_seq_fields);
    }
    return HEED_OK;
}

// The answer without keys: out = +0, lse = -inf.
void fill_without_keys(const heed_plan &plan, const heed_args &args) {
    const View &out = plan.views.out, &lse = plan.views.lse;
    const auto row_bytes = static_cast<size_t>(out.extent[3] * dtype_bytes(plan.problem.dtype));
    for (int64_t b = 0; b < out.extent[0]; b++) {
        for (int64_t i = 0; i < out.extent[1]; i++) {
            for (int64_t h = 0; h < out.extent[2]; h++) {
                const int64_t offset = b * out.stride[0] + i * out.stride[1] + h * out.stride[2];
                std::memset(static_cast<char *>(args.out.data) + offset * dtype_bytes(plan.problem.dtype), 0,
                            row_bytes);
            }
        }
    }
    for (int64_t b = 0; b < lse.extent[0]; b++) {
        for (int64_t h = 0; h < lse.extent[1]; h++) {
            float *row = static_cast<float *>(args.lse.data) + b * lse.stride[0] + h * lse.stride[1];
            for (int64_t i = 0; i < lse.extent[2]; i++) {
                row[i * lse.stride[2]] = -std::numeric_limits<float>::infinity();
            }
        }
    }
}

// Reverses a view into a kernel's dimension order.
KernelBuffer kernel_buffer(void *data, heed_dtype dtype, const View &view) {
    KernelBuffer buffer = {data, dtype, 4, {}, {}};
    for (int32_t i = 0; i < 4; i++) {
        buffer.extent[i] = static_cast<int32_t>(view.extent[3 - i]);
        buffer.stride[i] = static_cast<int32_t>(view.stride[3 - i]);
    }
    return buffer;
}

// One element that every [kv, q, head, batch] index reaches.
KernelBuffer dummy_buffer(const void *element, heed_dtype dtype, const heed_problem &p) {
    return {const_cast<void *>(element), dtype, 4, {p.max_kv_len, p.max_q_len, p.num_heads, p.batch}, {}};
}

// lse in the shape of out, with stride 0 along head_dim_v. When the caller wants none it lands in the workspace,
// packed.
KernelBuffer lse_buffer(const heed_plan &plan, const heed_args &args, char *workspace) {
    const heed_problem &p = plan.problem;
    const View &view = plan.views.lse;  // [batch, num_heads, q_len, 1]
    const int32_t packed[3] = {p.num_heads * p.max_q_len, p.max_q_len, 1};
    int32_t stride[3];
    for (int32_t i = 0; i < 3; i++) stride[i] = p.want_lse ? static_cast<int32_t>(view.stride[i]) : packed[i];
    void *data = p.want_lse ? args.lse.data : workspace + plan.workspace.lse;
    return {data, HEED_F32, 4, {p.head_dim_v, p.num_heads, p.max_q_len, p.batch}, {0, stride[1], stride[2], stride[0]}};
}

KernelCall make_call(const heed_plan &plan, const heed_args &args, char *workspace) {
    static const uint8_t may_attend = 1;
    static const float no_bias = 0;
    const heed_problem &p = plan.problem;
    const ProblemViews &views = plan.views;
    KernelCall call = {};
    call.q = kernel_buffer(args.q.data, p.dtype, views.q);
    call.k = kernel_buffer(args.k.data, p.kv_dtype, views.k);
    call.v = kernel_buffer(args.v.data, p.kv_dtype, views.v);
    call.mask = p.has_mask ? kernel_buffer(args.mask.data, HEED_U8, views.mask) : dummy_buffer(&may_attend, HEED_U8, p);
    call.bias = p.has_bias ? kernel_buffer(args.bias.data, HEED_F32, views.bias) : dummy_buffer(&no_bias, HEED_F32, p);
    call.seq = {workspace + plan.workspace.seq, HEED_I32, 2, {num_seq_fields, p.batch}, {1, num_seq_fields}};
    call.out = kernel_buffer(args.out.data, p.dtype, views.out);
    call.lse = lse_buffer(plan, args, workspace);
    call.scale = p.scale;
    call.split_len = static_cast<int32_t>(plan.splits.split_len);
    call.num_splits = plan.splits.num_splits;
    call.mask_true_hides = p.has_mask && p.mask_true_hides;
    return call;
}

heed_status run_kernel(const heed_plan &plan, const heed_args &args, int64_t total_keys) {
    const heed_problem &p = plan.problem;
    char *const workspace = static_cast<char *>(args.workspace);
    const double flops =
        2.0 * static_cast<double>(total_keys) * p.max_q_len * p.num_heads * (p.head_dim + p.head_dim_v);
    KernelContext context;
    context.slices = workspace + plan.workspace.slices;
    context.slice_bytes = plan.workspace.slice_bytes;
    context.root_bytes = plan.workspace.root_bytes;
    context.num_threads = choose_threads(flops, args.num_threads == 0 ? p.max_threads : args.num_threads);
    context.pool = args.pool;
    context.heap_scratch = plan.row->scratch_per_thread < 0;
    KernelCall call = make_call(plan, args, workspace);
    const int code = call_kernel(*plan.row, call, context);
    if (code == 0) return HEED_OK;
    const bool heap_exhausted = context.heap_scratch && code == kernel_out_of_memory;
    return fail(heap_exhausted ? HEED_OUT_OF_MEMORY : HEED_INTERNAL, "kernel %s failed with code %d: %s",
                plan.row->name, code, context.message[0] != '\0' ? context.message : "no message");
}

}  // namespace
}  // namespace heed

extern "C" {

heed_status heed_args_init(heed_args *args) {
    if (args == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_args_init: args is NULL");
    std::memset(args, 0, sizeof(*args));
    args->struct_size = sizeof(*args);
    return HEED_OK;
}

heed_status heed_execute(const heed_plan *plan, const heed_args *args) {
    if (const heed_status status = heed::check_call(plan, args)) return status;
    const heed_args call = *args;
    if (heed::is_empty_problem(plan->problem)) return HEED_OK;
    if (const heed_status status = heed::check_pointers(*plan, call)) return status;
    const bool no_keys = plan->problem.max_kv_len == 0;
    int32_t *seq =
        no_keys ? nullptr : reinterpret_cast<int32_t *>(static_cast<char *>(call.workspace) + plan->workspace.seq);
    int64_t total_keys = 0;
    if (const heed_status status = heed::resolve_metadata(*plan, call, seq, &total_keys)) return status;
    if (no_keys) {
        heed::fill_without_keys(*plan, call);
        return HEED_OK;
    }
    return heed::run_kernel(*plan, call, total_keys);
}

}  // extern "C"
