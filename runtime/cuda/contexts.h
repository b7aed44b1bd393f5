// The CUDA context in which a call runs.
#pragma once

#include "runtime/cuda/driver.h"

namespace heed::cuda {

// Makes the context of a stream current on this thread while it lives.
class ScopedContext {
public:
    ScopedContext() = default;
    ~ScopedContext();
    ScopedContext(const ScopedContext &) = delete;
    ScopedContext &operator=(const ScopedContext &) = delete;

    // Once. NULL is the default stream of the context that is current. Calls the driver three times (NULL: twice), and
    // twice more where the stream's context is not the current one; a context that was not seen before is looked at.
    heed_status enter(const Driver &driver, Stream stream);
    // Once. The given context.
    heed_status enter_context(const Driver &driver, Context context);

    Context handle() const { return context_; }
    uint64_t id() const { return id_; }
    int capability() const { return capability_; }  // of its chip, 10 * major + minor

private:
    heed_status find(Stream stream, Context *context, Context *current) const;
    heed_status make_current(Context context, Context current);
    heed_status look_up_capability();

    const Driver *driver_ = nullptr;
    Context context_ = nullptr;
    bool pushed_ = false;
    uint64_t id_ = 0;
    int capability_ = 0;
};

// Compute capability of the chip whose context is current on this thread, 10 * major + minor; 0 where none is. Does not
// load the driver: a process without it has no context.
int current_capability();

}  // namespace heed::cuda
