#pragma once
// Puts device code into a Halide pipeline: Halide makes the host side of its arguments and outputs, and in the place of
// the output's loops comes one launch.

#include <string>
#include <vector>

#include "Halide.h"
#include "generators/common/kernel_arguments.h"
#include "generators/cuda/device_tensor.h"

namespace heed::cuda {

struct Launch {
    std::string name;     // of the kernel, as profilers show it
    Halide::Expr blocks;  // of a one-dimensional grid, below 2^31
    int threads;          // of a block
    int shared_bytes = 0;
    std::vector<DeviceTensor> tensors;  // arguments that `program` or `blocks` use
    // Int(32) values that the host computes, in order; variables of these names pass them to what is after.
    std::vector<std::pair<std::string, Halide::Expr>> host_values;
    Halide::Internal::Stmt program;  // of one thread

    // Number of the block and of the thread in it, for use in `program`.
    static Halide::Expr block(const std::string &name);
    static Halide::Expr thread(const std::string &name);
};

// The module of a kernel whose host side takes `arguments` and then the outputs of `output`. Defines and schedules
// `output`, a Func of these types whose values are the launch's business; outputs after the first may have any strides.
// Not assembled yet: see device_binary.h.
Halide::Module launch_module(const std::string &name, Halide::Func output, const std::vector<OutputType> &types,
                             const std::vector<Halide::Argument> &arguments, const Launch &launch,
                             const Halide::Target &target);

}  // namespace heed::cuda
