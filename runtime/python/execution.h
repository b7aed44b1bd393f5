// How a call runs: the device of its arrays, the stream, scratch memory.
#pragma once

#include "runtime/python/array.h"

namespace heed::python {

// Without a workspace.
heed_execution execution_on(const Array &array, uint64_t stream);

// Scratch memory of one call, alive as long as this and, on the CPU, until the thread's next one.
class CallWorkspace {
public:
    // CPU: the thread's own, and `given` is NULL or INVALID_ARGUMENT. CUDA: `given`, or what allocate(bytes) returns.
    CallWorkspace(heed_device device, size_t bytes, const Array *given, const nanobind::object &allocate);

    template <class Target>
    void attach(Target &target) const {
        target.workspace = data_;
        target.workspace_bytes = bytes_;
    }

private:
    Array array_;
    void *data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace heed::python
