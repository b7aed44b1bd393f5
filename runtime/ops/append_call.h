// What heed_kv_append checks, and the private list of what goes where that it makes on the way.
#pragma once

#include "runtime/backend.h"
#include "runtime/ops/heap_array.h"
#include "runtime/ops/kv_cache.h"
#include "runtime/ops/rotation.h"

namespace heed {

// Tokens of one sequence that go to neighbouring slots of one block of the cache.
struct AppendSegment {
    int64_t block;
    int32_t slot;  // of the first token, in the block
    int32_t sequence, first_token, num_tokens;
    int32_t first_position;  // of the first token, in its sequence
};

// The call's private copy of kv_lens and new_lens.
struct AppendLengths {
    int32_t kv_len, new_len;
};

struct AppendCall {
    explicit AppendCall(const heed_execution &execution)
        : memory(backend_of(execution.device).list_memory(execution)) {}

    KvCache cache = {};
    View k_new = {}, v_new = {};
    Rotation rotation = {};              // num_pairs 0: keys are copied
    const OpKernel *quantise = nullptr;  // CPU
    int32_t tokens_per_segment = 1;
    OpMemory memory;
    HeapArray<AppendLengths> lengths;
    HeapArray<AppendSegment> segments;
    int64_t num_segments = 0;
    int64_t num_tokens = 0;
};

// Where a segment goes: elements, and scales when quantised.
struct Slots {
    Rows elements, scales;
};

inline Slots slots_of(const heed_tensor &tensor, const View &view, const heed_tensor &scale, const View &scale_view,
                      const AppendSegment &s) {
    return {rows_of(tensor.data, view, tensor.dtype, s.block, s.slot),
            rows_of(scale.data, scale_view, HEED_F32, s.block, s.slot)};
}

// Everything, before anything is written.
heed_status check_append(const heed_kv_append_args &args, AppendCall *call);

}  // namespace heed
