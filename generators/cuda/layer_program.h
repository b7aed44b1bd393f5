#pragma once
// The base of kernels of one launch whose threads write where an address among their parameters says.

#include <string>
#include <vector>

#include "launch.h"
#include "row_elements.h"

namespace heed::cuda {

constexpr int layer_threads = 256;  // of a block

class LayerProgram {
protected:
    LayerProgram(const std::string &name, ElementType type) : name(name), elements(type, code) {}

    // Arguments of the kernel in the order of these calls.
    template <typename T>
    Halide::Param<T> parameter(const std::string &parameter_name) {
        const Halide::Param<T> result(parameter_name);
        arguments.emplace_back(result);
        return result;
    }

    Halide::Module launch(const Halide::Expr &blocks, const Halide::Target &target, int shared_bytes = 0) {
        const Launch launch = {name, blocks, layer_threads, shared_bytes, {}, {}, code.finish()};
        return launch_module(name, Halide::Func("written"), {Halide::UInt(8)}, 1, arguments, launch, target);
    }

    const std::string name;
    DeviceCode code;
    RowElements elements;

private:
    std::vector<Halide::Argument> arguments;
};

}  // namespace heed::cuda
