// heed.Layer and what it is made from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include "heed/heed.hpp"

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
    // INVALID_ARGUMENT unless the matrices have the shapes that heed_weight_layout says; dims of `config` are resolved.
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

}  // namespace heed::python
