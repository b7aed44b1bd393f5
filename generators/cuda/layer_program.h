#pragma once
// The base of kernels of one launch whose threads write where an address among their parameters says.

#include <string>
#include <vector>

#include "generators/contract/cuda_layer_arguments.h"
#include "generators/cuda/launch_arguments.h"
#include "generators/cuda/row_elements.h"

namespace heed::cuda {

constexpr int layer_threads = 256;  // of a block

class LayerProgram {
protected:
    LayerProgram(const std::string &name, ElementType type) : name(name), elements(type, code) {}

    template <typename Inputs>
    Halide::Module launch(const Inputs &in, const Halide::Expr &blocks, const Halide::Target &target,
                          int shared_bytes = 0) {
        const Launch launch = {name, blocks, layer_threads, shared_bytes, {}, {}, code.finish()};
        return launch_module(name, Halide::Func("written"), in.output_types(), in.arguments(), launch, target);
    }

    const std::string name;
    DeviceCode code;
    RowElements elements;
};

}  // namespace heed::cuda
