// The attention layers of a decoder, without its feed-forward part: y = x + layer(x), one layer after the other; on
// CUDA y = layer(x), since Heed's kernels add nothing to a layer's result.
#pragma once

#include <memory>
#include <vector>

#include "bench/demo/decode/device.h"
#include "heed/heed.hpp"

namespace heed_decode {

// Shazeer, "Fast Transformer Decoding: One Write-Head is All You Need", arXiv 1911.02150: d_model 1024, 8 heads of 128,
// 6 layers.
struct Sizes {
    int32_t d_model = 1024, num_heads = 8, head_dim = 128, num_layers = 6;
    int32_t batch = 16, prompt_len = 2048, steps = 128;
    int32_t threads = 2;
    heed_dtype dtype = HEED_F32;
};

// Numbers of mean 0.
std::vector<float> normal(size_t count, float deviation, uint64_t seed);

// Random weights of a multi-head decoder layer, normal with variance 1 / d_model.
struct HeadWeights {
    HeadWeights(const Sizes &sizes, uint64_t seed);
    std::vector<float> q, k, v, out;
};

class Decoder {
public:
    // The heads of k and v are pooled to num_kv_heads, the start of uptraining (Ainslie et al., arXiv 2305.13245).
    Decoder(const Device &device, const Sizes &sizes, const std::vector<HeadWeights> &weights, int32_t num_kv_heads);

    static constexpr int32_t max_q_len = 256;

    // Appends q_len tokens of each sequence: x [batch, q_len, d_model] becomes the last layer's output. Waits for it.
    void forward(std::vector<float> &x, int32_t q_len);

    // Seconds of attention alone for one more token, in all layers on their own caches: the plan that a step uses.
    double attention_seconds() const;

    // Bytes of keys and values that one step reads now.
    double cache_bytes() const;

private:
    struct Layer {
        heed::Layer layer;
        heed::Cache cache;
    };
    const Device &device_;
    const Sizes sizes_;
    const int32_t num_kv_heads_;
    std::vector<Layer> layers_;
    std::unique_ptr<DeviceValues> workspace_, x_, y_;
};

}  // namespace heed_decode
