// heed.Layer and what it is made from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include "heed/heed.hpp"
#include "runtime/python/layer_call.h"

namespace heed::python {

// A tensor of a safetensors file, which it keeps open.
struct StoredTensor {
    std::shared_ptr<const WeightsFile> file;
    WeightsFile::Tensor tensor;
};

// heed_layer_weights by their names there, from a dict of arrays on the CPU and stored tensors, which it keeps alive.
class LayerWeightArrays {
public:
    explicit LayerWeightArrays(const nanobind::dict &weights);

    const LayerWeights &weights() const { return weights_; }
    heed_dtype dtype() const;
    // INVALID_ARGUMENT unless they have the shapes that heed_layer_weights says; biases of q, k and v may be
    // [heads, dims]. Dims of `config` are resolved.
    void check_shapes(const heed_layer_config &config) const;

private:
    struct Shape {
        std::string name;
        std::vector<int64_t> extents;
    };

    LayerWeights weights_;
    std::vector<Shape> shapes_;
    std::vector<nanobind::object> sources_;
};

// Gradients of a call, by the names of heed_layer_gradients' fields and of the weights.
class LayerGradientArrays {
public:
    LayerGradientArrays(const nanobind::dict &given, const LayerCall &call, const heed_layer_config &config);

    const heed_layer_gradients &gradients() const { return gradients_; }
    // heed_layer_gradients' dbias, as far as CUDA's workspace must hold it.
    size_t dbias_bytes() const;

private:
    heed_layer_gradients gradients_ = {};
    std::vector<Array> arrays_;
};

}  // namespace heed::python
