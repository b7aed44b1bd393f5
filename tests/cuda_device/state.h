// What the emulated driver holds: contexts and everything that belongs to one. One mutex guards all of it.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda_device/cuda_abi.h"
#include "tests/cuda_device/launch.h"

namespace heed::device {

struct Context {
    uint64_t id = 0;  // also that of its allocations
    CUcontext handle = nullptr;
    CUdevice device = 0;
    int retained = 0;  // of a primary context
    bool primary = false;
    CUresult error = cuda_success;  // of a failed launch: every later call returns it
};

struct Module {
    Context *context = nullptr;
    std::shared_ptr<const Program> program;
};

struct Function {
    Context *context = nullptr;
    CUmodule module = nullptr;
    std::shared_ptr<const Program> program;
    const Kernel *kernel = nullptr;
    uint32_t max_dynamic_shared = 0;
};

// Work that a stream does at once or a capture keeps.
using Work = std::function<CUresult()>;

struct Stream {
    Context *context = nullptr;
    bool blocking = true;  // waits for the default stream
    int capture = capture_none;
    int mode = capture_global;
    std::thread::id thread;  // that began the capture
    std::vector<Work> captured;
};

struct Event {
    Context *context = nullptr;
    bool times = true, recorded = false;
    std::chrono::steady_clock::time_point time;
};

struct Graph {
    Context *context = nullptr;
    std::vector<Work> work;
};

struct GraphExec {
    Context *context = nullptr;
    std::vector<Work> work;
};

// Objects that callers hold by handles, which are never given twice: a stale one is found out.
template <typename T>
class Handles {
public:
    void *add(T object) {
        void *handle = reinterpret_cast<void *>(next_ += 16);
        objects_.emplace(handle, std::make_unique<T>(std::move(object)));
        return handle;
    }
    T *find(const void *handle) const {
        const auto found = objects_.find(handle);
        return found == objects_.end() ? nullptr : found->second.get();
    }
    bool remove(const void *handle) { return objects_.erase(handle) != 0; }
    template <typename Predicate>
    void remove_if(Predicate predicate) {
        for (auto at = objects_.begin(); at != objects_.end();)
            at = predicate(*at->second) ? objects_.erase(at) : std::next(at);
    }
    // f(handle, object)
    template <typename F>
    void for_each(F f) const {
        for (const auto &[handle, object] : objects_) f(handle, *object);
    }

private:
    std::map<const void *, std::unique_ptr<T>> objects_;
    uintptr_t next_ = 0x10000;
};

struct State {
    std::mutex mutex;
    bool initialized = false;
    int num_devices = 1;
    int capability = 90;
    Options options;
    uint64_t next_context = 1;
    DeviceMemory memory;
    Handles<Context> contexts;
    Handles<Module> modules;
    Handles<Function> functions;
    Handles<Stream> streams;
    Handles<Event> events;
    Handles<Graph> graphs;
    Handles<GraphExec> graph_execs;

    // Test controls.
    uint64_t launches = 0;
    std::map<std::string, uint64_t> instructions;  // by opcode
    Traffic traffic;
    std::string last_error;
    bool replaces = false;
    std::string replace_from, replace_to;
    int replace_occurrence = 0;
};

State &state();

// Keeps the sentence for heed_device_last_error() and writes it to stderr. Returns `code`.
CUresult report(CUresult code, const std::string &sentence);

// False where `text` is not understood.
bool parse_options(const std::string &text, Options *options);

// Bytes of shared memory that a block may ask for on the device.
uint32_t max_shared_bytes();

// The calling thread's contexts, innermost last; entries may be null or gone.
std::vector<CUcontext> &context_stack();
// The innermost, null where there is none or it is gone; and what it means.
CUcontext current_handle();
Context *current_context();

// What a destroyed context leaves.
void destroy_context(CUcontext handle);

// Whether the calling thread must not do what may not happen during a capture; breaks the captures that forbid it.
bool breaks_capture();

// The PTX of an image: text, or that of a fatbin, for a chip that PTX or machine code of it serves. *any_chip: machine
// code does, so that the PTX, which is for later chips, counts whatever its .target. Throws ParseError; `*code` says
// what to return then.
std::string find_ptx(const void *image, CUresult *code, bool *any_chip);

// Runs `f` under the mutex.
template <typename F>
CUresult locked(F f) {
    const std::lock_guard<std::mutex> lock(state().mutex);
    if (!state().initialized) return cuda_not_initialized;
    try {
        return f();
    } catch (const std::bad_alloc &) {
        return report(cuda_out_of_memory, "out of memory");
    }
}

// The same with the current context, which must be usable.
template <typename F>
CUresult in_context(F f) {
    return locked([&]() -> CUresult {
        Context *context = current_context();
        if (context == nullptr) return report(cuda_invalid_context, "no context is current");
        if (context->error != cuda_success) return context->error;
        return f(*context);
    });
}

// Runs `work` now, or keeps it where the stream captures. `handle` may be the default stream.
CUresult submit(Context &context, CUstream handle, Work work);

}  // namespace heed::device

#define HEED_EXPORT extern "C" __attribute__((visibility("default")))
