// Kernel images, loaded once per CUDA context.
#pragma once

#include "runtime/cuda/context_table.h"
#include "runtime/cuda/driver.h"

namespace heed::cuda {

// A kernel's image (cubins and PTX in a fat binary) with its one kernel in each context that used it. Lives as long as
// the process, and the modules as long as their contexts. With more than 32 contexts a process loads an image again for
// the contexts that come back, and keeps the earlier copy too.
class Image {
public:
    explicit Image(const void *data) : data_(data) {}

    // The kernel in the current context, whose id is given, ready for `shared_bytes` of dynamic shared memory. Once
    // that is known it takes no driver call. Loading is allowed while a stream is captured.
    heed_status find(const Driver &driver, uint64_t context_id, const char *entry, int shared_bytes,
                     Function *function);

private:
    heed_status load(const Driver &driver, uint64_t context_id, const char *entry, Function *function);

    const void *const data_;
    ContextTable kernels_;  // the function, the dynamic shared memory that it may use
};

}  // namespace heed::cuda
