#include "runtime/backends.h"
#include "runtime/cuda/op_session.h"
#include "runtime/ops/merge_call.h"
#include "runtime/ops/op_run.h"
#include "runtime/status.h"

namespace heed {
namespace {

using cuda::address_of;

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

}  // namespace

// One launch for all rows.
heed_status CudaBackend::merge_states(const heed_merge_args &a, const MergeCall &call) const {
    cuda::MergeStatesArguments arguments;
    if (const heed_status status = list_states(a, arguments.word.word)) return status;
    int64_t num_rows = 0, elements = 0;
    if (!checked_mul(int64_t{a.batch} * a.q_len, a.num_heads, &num_rows) ||
        !checked_mul(num_rows, a.head_dim_v, &elements) || elements > (int64_t{1} << 30)) {
        return fail(HEED_UNSUPPORTED, "out has %d x %d x %d x %d elements; CUDA merges up to 2^30", a.batch, a.q_len,
                    a.num_heads, a.head_dim_v);
    }
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
    return cuda::launch(a.execution, Op::merge_states, a.dtype, arguments);
}

}  // namespace heed
