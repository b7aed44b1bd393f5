// A kernel table without generated code: kernels whose kernel records its arguments, computes attention by plain loops
// in Halide's parallel-for and scratch, or fails as told. It tests the runtime alone.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/kernel.h"

namespace stub {

// One recorded buffer, dimensions innermost first.
struct Buffer {
    const void *data;
    std::vector<int32_t> extents, strides;
    int32_t type_code, type_bits;  // Halide's
};

using Task = std::array<int32_t, heed::num_task_fields>;

#define HEED_RECORDED_BUFFER(name, element, dims) Buffer name;
#define HEED_RECORDED_VALUE(name, type) type name;

// The arguments of the last call.
struct Call {
    std::string kernel;
    HEED_ATTENTION(HEED_RECORDED_BUFFER, HEED_RECORDED_VALUE, HEED_RECORDED_BUFFER)
    std::vector<Task> task_table;
    uint8_t first_mask;
    float first_bias, first_sink, first_slope;
    uint16_t first_bias_16;
    int32_t first_page;
};

// What the next calls do. `record` and `inside` are for tests with one call at a time.
struct Behaviour {
    int code = 0;                    // returned instead of computing when not 0
    const char *message = nullptr;   // handed to halide_error before returning `code`
    int64_t scratch_bytes = 0;       // taken and given back by every item beyond its own need
    int64_t root_scratch_bytes = 0;  // taken before and given back after the parallel loop
    bool record = true;
    std::function<void(int item)> inside;  // called by every item of the parallel loop, one per task
};

extern Behaviour behaviour;
extern Call last_call;
extern std::atomic<int64_t> num_calls;

// Kernel names. `wide` kernels serve masks and biases, `paged` ones every feature and storage.
extern const char *const prefill_d64;
extern const char *const prefill_any;
extern const char *const prefill_any_wide;
extern const char *const prefill_paged;
extern const char *const decode_d64;
extern const char *const decode_any;
extern const char *const decode_paged;
extern const char *const decode_whole, *const decode_whole_16;
extern const char *const heap_kernel;
extern const char *const foreign_kernel;
extern const char *const f16_kernel;
extern const char *const bf16_kernel;
extern const char *const int8_kernel;

constexpr int32_t kv_block = 32;
constexpr int32_t prefill_row_block = 8, decode_paged_row_block = 4;
constexpr int64_t scratch_per_thread = 1 << 16;

}  // namespace stub
