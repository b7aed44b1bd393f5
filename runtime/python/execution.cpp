#include "runtime/python/execution.h"

#include "runtime/python/errors.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

// At least `bytes` of memory; it grows to the largest that the thread has needed.
const Workspace &thread_workspace(size_t bytes) {
    thread_local Workspace workspace(0);
    if (workspace.bytes() < bytes) workspace = Workspace(bytes);
    return workspace;
}

}  // namespace

heed_execution execution_on(const Array &array, uint64_t stream) {
    heed_execution execution = {};
    execution.device = array.device;
    execution.stream = reinterpret_cast<void *>(stream);
    return execution;
}

CallWorkspace::CallWorkspace(heed_device device, size_t bytes, const Array *given, const nb::object &allocate) {
    if (device == HEED_CPU) {
        if (given != nullptr) refuse("workspace is given for arrays on the CPU; it must be None");
        const Workspace &own = thread_workspace(bytes);
        data_ = own.data();
        bytes_ = own.bytes();
        return;
    }
    if (given == nullptr && allocate.is_none()) {
        refuse("workspace is missing; for arrays on CUDA that are not PyTorch's it must be %zu bytes there", bytes);
    }
    array_ = given != nullptr ? *given : import_array("workspace", allocate(bytes), Access::write);
    array_.check_packed(HEED_U8);
    data_ = array_.tensor.data;
    bytes_ = static_cast<size_t>(array_.tensor.size);
}

}  // namespace heed::python
