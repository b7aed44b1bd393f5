// Tokens on their way on CUDA: rotations, appends to a cache, copies within it.
#include <algorithm>
#include <cinttypes>

#include "runtime/backends.h"
#include "runtime/cuda/op_session.h"
#include "runtime/cuda/token_launches.h"
#include "runtime/ops/append_call.h"
#include "runtime/ops/copy_call.h"
#include "runtime/ops/rope_call.h"

namespace heed {
namespace {

// In launches, plane by plane. Rows of neighbouring heads count as one.
struct CudaCopies {
    const CopyCall &call;
    cuda::OpSession *session;

    template <typename Visit>
    heed_status run(int64_t count, const Visit &visit) const {
        heed_status status = HEED_OK;
        for (int32_t p = 0; p < call.num_planes && !status; p++) {
            const Plane &plane = call.planes[p];
            const bool joined = call.num_heads == 1 || plane.view->stride[2] == plane.view->extent[3];
            const int64_t length = plane.row_bytes * (joined ? call.num_heads : 1);
            if (length > INT32_MAX) return fail(HEED_UNSUPPORTED, "a token of the cache has more than 2^31-1 bytes");
            cuda::TokenMoves moves({&session->kernel(), joined ? 1 : call.num_heads, static_cast<int32_t>(length)},
                                   session->launches());
            const auto copy = [&](int32_t q, const Rows &from, const Rows &to, int32_t tokens) {
                if (q == p && !status) status = moves.add({from, to, nullptr, tokens});
            };
            for (int64_t index = 0; index < count; index++) visit(index, copy);
            if (!status) status = moves.flush();
        }
        return status;
    }
};

}  // namespace

// The launches find their kernel.
heed_status CudaBackend::find_rotation(heed_dtype, Rotation *) const { return HEED_OK; }

heed_status CudaBackend::rope(const heed_rope_args &a, const RopeCall &call) const {
    cuda::OpSession session;
    heed_status status = session.open(a.execution, Op::rope, a.dtype, a.dtype);
    if (status) return status;
    cuda::TokenMoves moves({&session.kernel(), a.num_heads, a.head_dim, &call.rotation}, session.launches());
    for (int64_t b = 0; b < a.batch && !status; b++) {
        const int32_t *const positions = call.rotation.positions;
        status = moves.add({rows_of(a.x.data, call.x, a.dtype, b, 0), rows_of(a.out.data, call.out, a.dtype, b, 0),
                            nullptr, a.len, positions == nullptr ? nullptr : positions + b * a.len, b * a.len});
    }
    return status ? status : moves.flush();
}

// A workspace on the device is no memory for lists.
OpMemory CudaBackend::list_memory(const heed_execution &) const { return OpMemory({}); }

heed_status CudaBackend::prepare_append(const heed_kv_append_args &, AppendCall *call) const {
    call->tokens_per_segment = INT32_MAX;
    return HEED_OK;
}

heed_status CudaBackend::append(const heed_kv_append_args &a, const AppendCall &call) const {
    if (call.num_segments == 0) return HEED_OK;
    const heed_kv_view &c = a.cache;
    cuda::OpSession session;
    const Op op = call.cache.quantised ? Op::kv_append : Op::rope;
    heed_status status = session.open(a.execution, op, a.dtype, call.cache.quantised ? HEED_I8 : a.dtype);
    if (status) return status;
    cuda::TokenMoves k({&session.kernel(), c.num_kv_heads, c.head_dim, &call.rotation}, session.launches());
    cuda::TokenMoves v({&session.kernel(), c.num_kv_heads, c.head_dim_v}, session.launches());
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

heed_status CudaBackend::add_copy_workspace(const heed_execution *execution, MemoryRanges *ranges) const {
    return add_workspace(*execution, ranges);
}

heed_status CudaBackend::find_copy_memory(const heed_execution *execution, int64_t least, CopyCall *call) const {
    if (execution->workspace == nullptr || execution->workspace_bytes < static_cast<size_t>(least)) {
        return fail(HEED_WORKSPACE_TOO_SMALL,
                    "execution.workspace_bytes is %zu; on CUDA the ranges whose source is overwritten need %" PRId64,
                    execution->workspace == nullptr ? 0 : execution->workspace_bytes, least);
    }
    call->saved = static_cast<char *>(execution->workspace);
    call->saved_tokens =
        call->tokens_in(static_cast<int64_t>(std::min<size_t>(execution->workspace_bytes, INT64_MAX)), least);
    return HEED_OK;
}

heed_status CudaBackend::copy(const CopyCall &call, const heed_execution *execution) const {
    cuda::OpSession session;
    const heed_status status = session.open(*execution, Op::kv_copy, HEED_U8, HEED_U8);
    return status ? status : copy_all(call, CudaCopies{call, &session});
}

}  // namespace heed
