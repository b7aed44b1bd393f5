// The arguments of generated functions in Halide's argv form.
#pragma once

#include <HalideRuntime.h>

#include "halide_bridge.h"

namespace heed {

// A halide_buffer_t with its dimensions: on the CPU with a host pointer, on CUDA with a device address.
struct HalideBuffer {
    void set(const KernelBuffer &buffer, heed_device device);

    halide_dimension_t dimensions[4];
    halide_buffer_t raw = {};
};

// Points into what the list names and at `user_context`.
class HalideArguments {
public:
    HalideArguments(const ArgumentList &list, void **user_context, heed_device device);
    HalideArguments(const HalideArguments &) = delete;
    HalideArguments &operator=(const HalideArguments &) = delete;

    void **argv() { return argv_; }

private:
    HalideBuffer buffers_[max_buffer_arguments];
    void *argv_[1 + max_kernel_arguments];
};

}  // namespace heed
