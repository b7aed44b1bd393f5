#pragma once
// Lists of the contract (contract/arguments.h) as members of a launch's inputs: a DeviceTensor or a Param for each.

#include "generators/common/kernel_arguments.h"
#include "generators/cuda/launch.h"

namespace heed::cuda {

inline Halide::Argument buffer_argument(const DeviceTensor &tensor, const Halide::Type &type) {
    return {tensor.name, Halide::Argument::InputBuffer, type, tensor.dimensions, Halide::ArgumentEstimates()};
}

}  // namespace heed::cuda

#define HEED_DEVICE_TENSOR(name, element, dims) ::heed::cuda::DeviceTensor name{#name, dims};
#define HEED_ADD_DEVICE_BUFFER(name, element, dims)                                                                    \
    list.push_back(::heed::cuda::buffer_argument(name, types.of(::heed::Element::element)));
#define HEED_ADD_TENSOR(name, element, dims) list.push_back(name);

#define HEED_LAUNCH_ARGUMENTS(Name, LIST)                                                                              \
    struct Name {                                                                                                      \
        ::heed::ArgumentTypes types;                                                                                   \
        LIST(HEED_DEVICE_TENSOR, HEED_PARAM_MEMBER, HEED_IGNORE)                                                       \
        explicit Name(const ::heed::ArgumentTypes &argument_types = {}) : types(argument_types) {}                     \
        std::vector<Halide::Argument> arguments() const {                                                              \
            std::vector<Halide::Argument> list;                                                                        \
            LIST(HEED_ADD_DEVICE_BUFFER, HEED_ADD_ARGUMENT, HEED_IGNORE)                                               \
            return list;                                                                                               \
        }                                                                                                              \
        std::vector<::heed::OutputType> output_types() const {                                                         \
            std::vector<::heed::OutputType> list;                                                                      \
            LIST(HEED_IGNORE, HEED_IGNORE, HEED_ADD_OUTPUT)                                                            \
            return list;                                                                                               \
        }                                                                                                              \
        std::vector<::heed::cuda::DeviceTensor> tensors() const {                                                      \
            std::vector<::heed::cuda::DeviceTensor> list;                                                              \
            LIST(HEED_ADD_TENSOR, HEED_IGNORE, HEED_IGNORE)                                                            \
            return list;                                                                                               \
        }                                                                                                              \
    };
