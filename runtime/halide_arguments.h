// The arguments of generated functions in Halide's argv form.
#pragma once

#include <HalideRuntime.h>

#include "runtime/halide_bridge.h"

namespace heed {

// A halide_buffer_t with its dimensions.
struct HalideBuffer {
    void set(const KernelBuffer &buffer);

    halide_dimension_t dimensions[4];
    halide_buffer_t raw = {};
};

// Points into what the list names and at `user_context`.
class HalideArguments {
public:
    HalideArguments(const ArgumentList &list, void **user_context);
    HalideArguments(const HalideArguments &) = delete;
    HalideArguments &operator=(const HalideArguments &) = delete;

    // Addresses of buffers are the device's, not the host's.
    void move_to(const halide_device_interface_t *device);

    void **argv() { return argv_; }

private:
    HalideBuffer buffers_[max_buffer_arguments];
    int num_buffers_ = 0;
    void *argv_[1 + max_kernel_arguments];
};

}  // namespace heed
