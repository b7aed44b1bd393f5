// Calls generated kernels. Only halide_bridge, halide_arguments and cuda/ know Halide's runtime.
#pragma once

#include <atomic>

#include "runtime/kernel_arguments.h"
#include "runtime/scratch.h"

namespace heed {

namespace cuda {
struct Launches;
}

// Consecutive tasks, [first, end), that one thread runs one after the other, all of them for each of the parts
// [first_part, end_part) of their keys. Each has memory of its own, from part to part.
struct TaskBundle {
    int32_t first, end, first_part, end_part;
};

// How the loop over a kernel's tasks runs.
struct TaskLoop {
    int32_t num_tasks = 0;     // 0: there is none
    int32_t loops_before = 0;  // parallel loops of the kernel that come first; later ones have other sizes
    // On the thread that runs the task, in its slice, before it does. Whether there is such a part of it.
    bool (*before)(const void *state, int32_t task, const TaskBundle &bundle, int32_t part, int32_t slice) = nullptr;
    const void *state = nullptr;
    // All tasks, in their order; NULL: each is one, of one part.
    const TaskBundle *bundles = nullptr;
    int32_t num_bundles = 0;
    int64_t kept_bytes = 0;  // of the memory of a task in a bundle, at the end of a slice; it is what a task gets first
    int32_t largest_bundle = 0;
};

// What one running kernel may use; lives on the stack of heed_execute. Kernels see it as their user context. CUDA
// kernels use `launches` and `message` only.
struct KernelContext {
    char *slices;  // num_threads slices of slice_bytes each, the first with root_bytes more
    int64_t slice_bytes, root_bytes;
    int32_t num_threads;
    const heed_parallel_for *pool;  // NULL = the shared pool
    int32_t tasks_together = 1;     // consecutive tasks that read the same keys: one thread takes them as they come
    bool in_shares = false;         // equal tasks: each thread begins with a share of its own, the same in each call
    TaskLoop task_loop;
    int32_t num_loops = 0;  // parallel loops that have begun
    bool heap_scratch;      // scratch that a slice cannot hold comes from the heap
    std::atomic<bool> has_message{false};
    char message[512];  // the kernel's sentence when it fails; written by the thread that sets has_message
    cuda::Launches *launches = nullptr;
};

// The code of a kernel whose scratch could not be had.
constexpr int kernel_out_of_memory = -11;

// Routes allocation, parallel loops, errors and prints of all kernels of this program to the functions here: nothing
// aborts, nothing prints. Idempotent, thread-safe.
void install_halide_handlers();

// Runs the kernel and returns 0 or its negative code. Runs under the default floating-point environment (round to
// nearest, denormals kept, no traps) and leaves the caller's as it was.
int call_kernel(const Kernel &kernel, const KernelCall &call, KernelContext &context);

// What an op kernel that allocates works in: 128-byte aligned, ScratchSlice::bytes_for() of what it needs.
struct OpScratch {
    void *memory = nullptr;
    int64_t bytes = 0;
};

// Runs an op kernel on the calling thread and returns 0 or its negative code; `message` then holds its sentence. The
// floating-point environment as in call_kernel.
int call_op_kernel(const OpKernel &kernel, const ArgumentList &arguments, char (&message)[512],
                   const OpScratch &scratch = {});
template <typename Arguments>
int call_op_kernel(const OpKernel &kernel, const Arguments &arguments, char (&message)[512],
                   const OpScratch &scratch = {}) {
    ArgumentList list;
    arguments.list_to(&list);
    return call_op_kernel(kernel, list, message, scratch);
}

}  // namespace heed
