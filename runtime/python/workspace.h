// Scratch memory of calls on the CPU.
#pragma once

#include "heed/heed.hpp"

namespace heed::python {

// This thread's, of at least `bytes`; valid until its next call. It grows to the largest that the thread has needed.
inline const Workspace &thread_workspace(size_t bytes) {
    thread_local Workspace workspace(0);
    if (workspace.bytes() < bytes) workspace = Workspace(bytes);
    return workspace;
}

}  // namespace heed::python
