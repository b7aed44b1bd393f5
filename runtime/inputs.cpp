#include "runtime/inputs.h"

#include <cinttypes>
#include <cstring>
#include <iterator>
#include <limits>

#include "heed/fields.h"
#include "runtime/scratch.h"
#include "runtime/status.h"

namespace heed {
namespace {

// What the plan neither reads nor writes.
heed_status check_undeclared(const char *name, const void *data) {
    if (data == nullptr) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "%s is given; it must be NULL, as the plan's problem declares none", name);
}

// The arrays without a heed_tensor: their lengths follow from the problem. Metadata may be given for several plans.
heed_status add_arrays(const heed_problem &p, const heed_args &args, MemoryRanges *ranges) {
    const struct {
        bool used, is_metadata;
        const char *name;
        const void *data;
        int64_t count;
    } arrays[] = {
        {p.q_storage == HEED_Q_VARLEN, true, "cu_seqlens_q", args.cu_seqlens_q, int64_t{p.batch} + 1},
        {p.kv_storage == HEED_KV_VARLEN, true, "cu_seqlens_kv", args.cu_seqlens_kv, int64_t{p.batch} + 1},
        {p.has_kv_lens, true, "kv_lens", args.kv_lens, p.batch},
        {p.position == HEED_EXPLICIT, true, "q_offsets", args.q_offsets, p.batch},
        {p.kv_storage == HEED_KV_PAGED, true, "page_table", args.page_table, int64_t{p.batch} * p.max_pages_per_seq},
#define HEED_HEAD_ARRAY(name, used, ...) {p.used, false, #name, args.name, p.num_heads},
        HEED_HEAD_ARRAYS(HEED_HEAD_ARRAY)
#undef HEED_HEAD_ARRAY
    };
    constexpr int64_t width = 4;  // int32 and float
    for (const auto &array : arrays) {
        heed_status status = HEED_OK;
        if (array.used) status = ranges->add(array.name, array.data, array.count, width, Access::read);
        if (!array.used && !array.is_metadata) status = check_undeclared(array.name, array.data);
        if (status) return status;
    }
    return HEED_OK;
}

}  // namespace

heed_status add_declared(bool declared, const char *name, const heed_tensor &tensor, heed_dtype dtype, const View &view,
                         Access access, MemoryRanges *ranges) {
    if (!declared) return check_undeclared(name, tensor.data);
    return ranges->add(name, tensor, dtype, view.span, access);
}

heed_status add_workspace(const heed_plan &plan, const heed_args &args, MemoryRanges *ranges) {
    const int64_t needed = plan.workspace.total;
    if (args.workspace_bytes < static_cast<size_t>(needed)) {
        return fail(HEED_WORKSPACE_TOO_SMALL, "workspace_bytes is %zu; the plan needs %" PRId64, args.workspace_bytes,
                    needed);
    }
    const heed_status status =
        ranges->add("workspace", args.workspace, needed / scratch_alignment, scratch_alignment, Access::write);
    if (status || !plan.problem.metadata_on_device || args.device_status == nullptr) return status;
    return ranges->add("device_status", args.device_status, 1, sizeof(int32_t), Access::write);
}

heed_status add_inputs(const heed_problem &p, const ProblemViews &views, const heed_args &args, Reads reads,
                       MemoryRanges *ranges) {
    const bool codes = p.kv_dtype == HEED_I8, values = reads == Reads::all;
    const struct {
        bool used;
        const char *name;
        const heed_tensor &tensor;
        heed_dtype dtype;
        const View &view;
    } tensors[] = {
        {true, "q", args.q, p.dtype, views.q},
        {true, "k", args.k, p.kv_dtype, views.k},
        {values, "v", args.v, p.kv_dtype, views.v},
        {codes, "k_scale", args.k_scale, HEED_F32, views.kv_scale},
        {codes && values, "v_scale", args.v_scale, HEED_F32, views.kv_scale},
        {p.has_mask, "mask", args.mask, HEED_U8, views.mask},
        {p.has_bias, "bias", args.bias, p.bias_dtype, views.bias},
    };
    for (const auto &t : tensors) {
        const bool of_values = &t.tensor == &args.v || &t.tensor == &args.v_scale;
        if (!t.used && of_values && !values) continue;  // read by another call with these args
        const heed_status status = add_declared(t.used, t.name, t.tensor, t.dtype, t.view, Access::read, ranges);
        if (status) return status;
    }
    return add_arrays(p, args, ranges);
}

heed_status add_score_buffers(const Kernel &kernel, const heed_args &args, MemoryRanges *ranges) {
    constexpr const char *names[] = {"score_buffers[0]", "score_buffers[1]", "score_buffers[2]", "score_buffers[3]"};
    static_assert(std::size(names) == max_score_buffers, "a name for each buffer");
    const auto count = static_cast<int32_t>(std::strlen(kernel.score_buffers));
    for (int32_t i = count; i < max_score_buffers; i++) {
        if (args.score_buffers[i].data == nullptr) continue;
        return fail(HEED_INVALID_ARGUMENT, "%s is given; it must be NULL, as the problem's score_mod reads %d buffers",
                    names[i], count);
    }
    for (int32_t i = 0; i < count; i++) {
        const heed_tensor &tensor = args.score_buffers[i];
        if (tensor.size < 1 || tensor.size > std::numeric_limits<int32_t>::max()) {
            return fail(HEED_INVALID_ARGUMENT, "%s.size is %" PRId64 "; it must be 1..2147483647", names[i],
                        tensor.size);
        }
        const heed_dtype dtype = kernel.score_buffers[i] == 'f' ? HEED_F32 : HEED_I32;
        const heed_status status = ranges->add(names[i], tensor, dtype, tensor.size, Access::read);
        if (status) return status;
    }
    return HEED_OK;
}

}  // namespace heed
