// A kernel table without generated code: rows whose kernel records its arguments, computes attention by plain loops in
// Halide's parallel-for and scratch, or fails as told. It tests the runtime alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stub {

// One recorded buffer, dimensions innermost first.
struct Buffer {
    const void *data;
    std::vector<int32_t> extents, strides;
};

// The arguments of the last call.
struct Call {
    std::string row;
    Buffer q, k, v, mask, bias, seq, out, lse;
    std::vector<int32_t> seq_values;  // [batch][4]
    float scale;
    int32_t split_len, num_splits;
    int mask_true_hides;
    uint8_t first_mask;
    float first_bias;
};

// What the next calls do. `record` and `inside` are for tests with one call at a time.
struct Behaviour {
    int code = 0;                    // returned instead of computing when not 0
    const char *message = nullptr;   // handed to halide_error before returning `code`
    int64_t scratch_bytes = 0;       // taken and given back by every task beyond its own need
    int64_t root_scratch_bytes = 0;  // taken before and given back after the parallel loop
    bool record = true;
    std::function<void(int task)> inside;  // called by every task
};

extern Behaviour behaviour;
extern Call last_call;
extern std::atomic<int64_t> num_calls;

// Row names.
extern const char *const prefill_d64,
    *const prefill_any, *const prefill_any_wide,
                            *const decode_d64, *const decode_any, *const heap_row, *const foreign_row, *const f16_row;

constexpr int32_t kv_block = 32;
constexpr int64_t scratch_per_thread = 1 << 16;

}  // namespace stub
