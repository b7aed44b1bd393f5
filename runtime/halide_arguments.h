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

// Points into `call`, which it outlives not, and at `user_context`.
class AttentionArguments {
public:
    AttentionArguments(KernelCall &call, void **user_context, heed_device device);
    AttentionArguments(const AttentionArguments &) = delete;
    AttentionArguments &operator=(const AttentionArguments &) = delete;

    void **argv() { return argv_; }

private:
    static constexpr int num_buffers = 13;  // beside those of a score_mod, out and lse
    void set_scalars(KernelCall &call);

    HalideBuffer buffers_[num_buffers + max_score_buffers + 2];
    void *argv_[num_arguments + max_score_buffers] = {};
};

// The same for an op row.
class OpArguments {
public:
    // At most max_op_arguments arguments, of which at most max_op_buffers are buffers.
    OpArguments(const OpArgument *arguments, int num_arguments, void **user_context, heed_device device);
    OpArguments(const OpArguments &) = delete;
    OpArguments &operator=(const OpArguments &) = delete;

    void **argv() { return argv_; }

private:
    HalideBuffer buffers_[max_op_buffers];
    void *argv_[1 + max_op_arguments];
};

}  // namespace heed
