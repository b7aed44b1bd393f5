// A kernel table without generated code: a CPU kernel and CUDA kernels, whose host functions record their arguments and
// launch as generated ones do. Tests the runtime alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/kernel.h"

namespace stub {

// One recorded buffer, dimensions innermost first.
struct Buffer {
    uint64_t device;
    const void *host;
    std::vector<int32_t> extents, strides;
};

#define HEED_RECORDED_BUFFER(name, element, dims) Buffer name;
#define HEED_RECORDED_VALUE(name, type) type name;

// The arguments of the last call of an attention kernel.
struct Call {
    std::string kernel;
    HEED_ATTENTION(HEED_RECORDED_BUFFER, HEED_RECORDED_VALUE, HEED_RECORDED_BUFFER)
};

// And of the kernel `sequences`.
struct SequencesCall {
    HEED_CUDA_SEQUENCES(HEED_RECORDED_BUFFER, HEED_RECORDED_VALUE, HEED_RECORDED_BUFFER)
};

// And of the kernel `merge_splits`.
struct MergeCall {
    HEED_CUDA_MERGE_SPLITS(HEED_RECORDED_BUFFER, HEED_RECORDED_VALUE, HEED_RECORDED_BUFFER)
};

// What the next calls of attention kernels do.
struct Behaviour {
    int launches = 1;
    int shared_bytes = 0;
    int code = 0;  // returned in place of what the launches returned, unless 0
};

extern Behaviour behaviour;
extern thread_local Call last_call;
extern SequencesCall last_sequences;
extern MergeCall last_merge;
extern std::vector<heed::Op> operations;  // that ran, of those without a record of their own

extern const char *const cpu_kernel;     // f32, any head dim, every feature, paged
extern const char *const f16_kernel;     // sm80, head_dim 64, plain
extern const char *const f16_wide;       // sm80, any head dim, mask, bias, softcap, alibi
extern const char *const f32_kernel;     // sm75, any head dim, mask, bias, softcap, alibi
extern const char *const decode_kernel;  // sm80, f16, head_dim 128, paged
constexpr int32_t row_block = 64;

}  // namespace stub
