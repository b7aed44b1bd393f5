#include "runtime/halide_bridge.h"

#include <HalideRuntime.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "runtime/float_environment.h"
#include "runtime/halide_arguments.h"
#include "runtime/heuristics.h"
#include "runtime/thread_pool.h"
#include "runtime/view.h"

namespace heed {
namespace {

// What this thread is doing for which call. Parallel loops inside an item run serially.
struct ThreadState {
    KernelContext *context = nullptr;
    ScratchSlice *slice = nullptr;
    bool inside_item = false;
    char *kept = nullptr;  // what is left of the memory of the task at hand
    int64_t kept_bytes = 0;
};
thread_local ThreadState thread_state;

class ScopedThreadState {
public:
    explicit ScopedThreadState(const ThreadState &state) : saved_(thread_state) { thread_state = state; }
    ~ScopedThreadState() { thread_state = saved_; }
    ScopedThreadState(const ScopedThreadState &) = delete;
    ScopedThreadState &operator=(const ScopedThreadState &) = delete;

private:
    const ThreadState saved_;
};

char *slice_memory(const KernelContext &context, int32_t index) {
    return context.slices + (index == 0 ? 0 : context.root_bytes + index * context.slice_bytes);
}

ScratchSlice *slice_at(const KernelContext &context, int32_t index) {
    return reinterpret_cast<ScratchSlice *>(slice_memory(context, index));
}

bool in_workspace(const KernelContext &context, const void *block) {
    const auto address = reinterpret_cast<uintptr_t>(block), begin = reinterpret_cast<uintptr_t>(context.slices);
    return address >= begin && address - begin < static_cast<uintptr_t>(slice_memory(context, context.num_threads) -
                                                                        slice_memory(context, 0));
}

void *heap_allocate(size_t bytes) {
    void *block = nullptr;
    return posix_memalign(&block, scratch_alignment, bytes > 0 ? bytes : 1) == 0 ? block : nullptr;
}

// What the task at hand gets first, where it keeps something; else NULL.
void *allocate_kept(size_t bytes) {
    const int64_t padded = round_up(static_cast<int64_t>(bytes), scratch_alignment);
    if (thread_state.kept_bytes == 0 || padded > thread_state.kept_bytes) return nullptr;
    char *const block = thread_state.kept;
    thread_state.kept += padded;
    thread_state.kept_bytes -= padded;
    return block;
}

// A kernel called without a context (outside heed_execute) works from the heap and on one thread.
void *allocate_scratch(void *user_context, size_t bytes) {
    auto *context = static_cast<KernelContext *>(user_context);
    if (context == nullptr) return heap_allocate(bytes);
    void *block = nullptr;
    if (thread_state.context == context) {
        block = allocate_kept(bytes);
        if (block == nullptr) block = thread_state.slice->allocate(bytes);
    }
    return block == nullptr && context->heap_scratch ? heap_allocate(bytes) : block;
}

void release_scratch(void *user_context, void *block) {
    auto *context = static_cast<KernelContext *>(user_context);
    if (block == nullptr) return;
    if (context == nullptr || !in_workspace(*context, block)) {
        std::free(block);
    } else if (thread_state.context == context) {
        thread_state.slice->release(block);
    }
}

// Consecutive tasks.
struct TaskShare {
    alignas(64) std::atomic<int64_t> next{0};
    int64_t end = 0;
};

// A parallel loop in the hands of some items; item w works in slice w and takes task after task: of share w, then of
// the shares after it.
struct ParallelLoop {
    KernelContext *context;
    void *user_context;
    halide_task_t task;
    int32_t min, size;
    uint8_t *closure;
    int32_t num_items, together;
    const TaskLoop *tasks = nullptr;  // where this is the loop over tasks
    int32_t num_shares = 1;
    std::atomic<int32_t> error{0};
    TaskShare shares[most_shares] = {};

    // What threads take: tasks, or bundles of them.
    int64_t num_indices() const { return tasks != nullptr && tasks->bundles != nullptr ? tasks->num_bundles : size; }
    void share_tasks() {
        if (context->in_shares) num_shares = std::min(num_items, most_shares);
        for (int64_t i = 0; i < num_shares; i++) {
            shares[i].next.store(i * num_indices() / num_shares, std::memory_order_relaxed);
            shares[i].end = (i + 1) * num_indices() / num_shares;
        }
    }
    bool is_done() const {
        return std::all_of(shares, shares + num_shares, [](const TaskShare &s) { return s.next.load() >= s.end; });
    }
};

bool has_failed(const ParallelLoop &loop) { return loop.error.load(std::memory_order_relaxed) != 0; }

void run_task(ParallelLoop &loop, ScratchSlice *slice, int32_t index) {
    const ScratchSlice::Mark mark = slice->mark();
    const int32_t code = loop.task(loop.user_context, loop.min + index, loop.closure);
    slice->restore(mark);
    int32_t none = 0;
    if (code != 0) loop.error.compare_exchange_strong(none, code);
}

void run_part(ParallelLoop &loop, ScratchSlice *slice, int32_t item, const TaskBundle &bundle, int32_t part) {
    const TaskLoop &tasks = *loop.tasks;
    const bool keeps = bundle.end_part - bundle.first_part > 1;
    char *const end = slice_memory(*loop.context, item + 1);
    for (int32_t task = bundle.first; task < bundle.end && !has_failed(loop); task++) {
        if (!tasks.before(tasks.state, task, bundle, part, item)) continue;
        thread_state.kept_bytes = keeps ? tasks.kept_bytes : 0;
        thread_state.kept = end - (task - bundle.first + 1) * thread_state.kept_bytes;
        run_task(loop, slice, task);
    }
    thread_state.kept_bytes = 0;
}

// An index of the loop that threads share: of a task, or of a bundle.
void run_index(ParallelLoop &loop, ScratchSlice *slice, int32_t item, int32_t index) {
    if (loop.tasks == nullptr) return run_task(loop, slice, index);
    const TaskBundle *const bundles = loop.tasks->bundles;
    const TaskBundle bundle = bundles != nullptr ? bundles[index] : TaskBundle{index, index + 1, 0, 1};
    for (int32_t part = bundle.first_part; part < bundle.end_part; part++) run_part(loop, slice, item, bundle, part);
}

void run_share(ParallelLoop &loop, ScratchSlice *slice, int32_t item, TaskShare *share) {
    for (;;) {
        const int64_t first = share->next.fetch_add(loop.together, std::memory_order_relaxed);
        const int64_t end = std::min(share->end, first + loop.together);
        if (first >= end) return;
        for (int64_t index = first; index < end; index++) {
            if (has_failed(loop)) return;
            run_index(loop, slice, item, static_cast<int32_t>(index));
        }
    }
}

void run_tasks(ParallelLoop &loop, ScratchSlice *slice, int32_t item) {
    for (int32_t i = 0; i < loop.num_shares; i++) {
        run_share(loop, slice, item, &loop.shares[(item + i) % loop.num_shares]);
    }
}

void run_item(void *item_context, int32_t index) {
    auto &loop = *static_cast<ParallelLoop *>(item_context);
    if (index < 0 || index >= loop.num_items) return;
    ScratchSlice *slice = slice_at(*loop.context, index);
    const DefaultFloatEnvironment environment;
    const ScopedThreadState state({loop.context, slice, true});
    run_tasks(loop, slice, index);
}

int run_serially(void *user_context, halide_task_t task, int min, int size, uint8_t *closure) {
    for (int i = 0; i < size; i++) {
        if (const int code = task(user_context, min + i, closure)) return code;
    }
    return 0;
}

int run_parallel(void *user_context, halide_task_t task, int min, int size, uint8_t *closure) {
    auto *context = static_cast<KernelContext *>(user_context);
    if (context == nullptr || thread_state.context != context) {
        return run_serially(user_context, task, min, size, closure);
    }
    ParallelLoop loop{context, user_context, task, min, size, closure, 1, 1};
    const TaskLoop &tasks = context->task_loop;
    const bool is_of_tasks = !thread_state.inside_item && context->num_loops++ >= tasks.loops_before;
    if (is_of_tasks && tasks.num_tasks == size) loop.tasks = &tasks;
    const auto indices = static_cast<int32_t>(loop.num_indices());
    loop.num_items = std::min(indices, context->num_threads);
    loop.together = tasks_at_once(indices, loop.num_items, context->tasks_together);
    loop.share_tasks();
    if (loop.num_items <= 1 || thread_state.inside_item) {
        run_tasks(loop, thread_state.slice, 0);
        return loop.error.load();
    }
    if (context->pool != nullptr) {
        context->pool->run(context->pool->context, loop.num_items, run_item, &loop);
    } else {
        run_on_shared_pool(loop.num_items, run_item, &loop);
    }
    if (loop.error.load() == 0 && !loop.is_done()) {
        halide_error(user_context, "the caller's heed_parallel_for returned before it ran its items");
        return halide_error_code_generic_error;
    }
    return loop.error.load();
}

// Keeps the first sentence: later ones are consequences. Tasks that fail at once leave it to the one that comes first.
void keep_error(void *user_context, const char *message) {
    auto *context = static_cast<KernelContext *>(user_context);
    if (context == nullptr || context->has_message.exchange(true)) return;
    std::snprintf(context->message, sizeof(context->message), "%s", message);
}

void print_nothing(void *, const char *) {}

std::atomic<bool> installed{false};

static_assert(kernel_out_of_memory == halide_error_code_out_of_memory, "the runtime's copy of Halide's code");

}  // namespace

// Two threads may both install: they store the same values. A lock could be lost in a fork.
void install_halide_handlers() {
    if (installed.load(std::memory_order_acquire)) return;
    halide_set_custom_malloc(allocate_scratch);
    halide_set_custom_free(release_scratch);
    halide_set_custom_do_par_for(run_parallel);
    halide_set_error_handler(keep_error);
    halide_set_custom_print(print_nothing);
    installed.store(true, std::memory_order_release);
}

int call_kernel(const Kernel &kernel, const KernelCall &call, KernelContext &context) {
    for (int32_t i = 0; i < context.num_threads; i++) {
        const int64_t kept = context.task_loop.kept_bytes * context.task_loop.largest_bundle;
        ScratchSlice::create(slice_memory(context, i), context.slice_bytes - kept + (i == 0 ? context.root_bytes : 0));
    }
    context.message[0] = '\0';
    void *user_context = &context;
    ArgumentList list;
    call.list_to(&list);
    HalideArguments arguments(list, &user_context);
    const DefaultFloatEnvironment environment;
    const ScopedThreadState state({&context, slice_at(context, 0), false});
    return kernel.call(arguments.argv());
}

int call_op_kernel(const OpKernel &kernel, const ArgumentList &list, char (&message)[512], const OpScratch &scratch) {
    KernelContext context = {};
    context.slices = static_cast<char *>(scratch.memory);
    context.slice_bytes = scratch.bytes;
    context.num_threads = 1;
    ScratchSlice *slice = scratch.memory == nullptr ? nullptr : ScratchSlice::create(scratch.memory, scratch.bytes);
    void *user_context = &context;
    HalideArguments arguments(list, &user_context);
    const DefaultFloatEnvironment environment;
    const ScopedThreadState state({slice == nullptr ? nullptr : &context, slice, true});
    const int code = kernel.call(arguments.argv());
    if (code != 0) std::snprintf(message, sizeof(message), "%s", context.message);
    return code;
}

}  // namespace heed
