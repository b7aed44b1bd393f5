// Calls generated kernels. Only halide_bridge, halide_arguments and cuda/ know Halide's runtime.
#pragma once

#include <atomic>
#include <initializer_list>

#include "kernel.h"
#include "scratch.h"

namespace heed {

// One buffer argument, dimensions innermost first.
struct KernelBuffer {
    void *data;
    heed_dtype dtype;
    int32_t num_dims;
    int32_t extent[4], stride[4];
};

// The arguments of an attention row, see kernel.h.
struct KernelCall {
    KernelBuffer q, k, v, k_scale, v_scale, mask, bias, bias_16, sink, alibi_slopes, page_table, tasks, states, out,
        lse;
    KernelBuffer score_buffers[max_score_buffers];
    int32_t num_score_buffers;
    int32_t batch, max_q_len, max_kv_len;
    float scale, softcap;
    int32_t split_len, num_splits, page_size;
    int32_t mask_form, bias_form;
    uint8_t alibi_symmetric;
    uint64_t dropout_seed, dropout_offset, dropout_threshold;
    float dropout_scale;
    int32_t uniform, visible_begin, visible_end, position_offset;  // CUDA rows, and the next
    uint64_t device_status;
};

namespace cuda {
struct Launches;
}

// What one running kernel may use; lives on the stack of heed_execute. Kernels see it as their user context. CUDA rows
// use `launches` and `message` only.
struct KernelContext {
    char *slices;  // num_threads slices of slice_bytes each, the first with root_bytes more
    int64_t slice_bytes, root_bytes;
    int32_t num_threads;
    const heed_parallel_for *pool;  // NULL = the shared pool
    int32_t tasks_together = 1;     // consecutive tasks that read the same keys: one thread takes them as they come
    bool heap_scratch;              // scratch that a slice cannot hold comes from the heap
    std::atomic<bool> has_message{false};
    char message[512];  // the kernel's sentence when it fails; written by the thread that sets has_message
    cuda::Launches *launches = nullptr;
};

// The code of a kernel whose scratch could not be had.
constexpr int kernel_out_of_memory = -11;

// Routes allocation, parallel loops, errors and prints of all kernels of this program to the functions here: nothing
// aborts, nothing prints. Idempotent, thread-safe.
void install_halide_handlers();

// Runs the row and returns 0 or its negative code. Runs under the default floating-point environment (round to nearest,
// denormals kept, no traps) and leaves the caller's as it was.
int call_kernel(const Kernel &row, KernelCall &call, KernelContext &context);

// One argument of an op row.
struct OpArgument {
    const KernelBuffer *buffer = nullptr;
    const void *scalar = nullptr;  // when there is no buffer

    OpArgument() = default;
    OpArgument(const KernelBuffer &buffer) : buffer(&buffer) {}
    OpArgument(const int32_t &scalar) : scalar(&scalar) {}
    OpArgument(const uint64_t &scalar) : scalar(&scalar) {}
    OpArgument(const float &scalar) : scalar(&scalar) {}
};

constexpr int max_op_arguments = 160, max_op_buffers = 24;

// Runs an op row on the calling thread, in the order of arguments that kernel.h states, and returns 0 or its negative
// code; `message` then holds its sentence. The floating-point environment as in call_kernel.
int call_op_kernel(const OpKernel &row, const OpArgument *arguments, int num_arguments, char (&message)[512]);
inline int call_op_kernel(const OpKernel &row, std::initializer_list<OpArgument> arguments, char (&message)[512]) {
    return call_op_kernel(row, arguments.begin(), static_cast<int>(arguments.size()), message);
}

}  // namespace heed
