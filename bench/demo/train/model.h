// A character-level decoder: blocks of x += attention(norm(x)), x += W2 relu(W1 norm(x))^2 (So et al., arXiv
// 2109.08668), then norm and logits. Attention and dense layers run forward and backward by Heed.
#pragma once

#include <cmath>
#include <memory>

#include "bench/demo/train/dense.h"
#include "bench/demo/train/text.h"

namespace heed_train {

struct Sizes {
    int32_t context = 64, batch = 16, width = 128, num_heads = 4, num_layers = 3;
    int32_t threads = 2;
    float dropout = 0.1f;  // of attention's weights
};

class Model {
public:
    // num_kv_heads: num_heads is multi-head, 1 multi-query attention.
    Model(const Sizes &sizes, int32_t num_symbols, int32_t num_kv_heads, uint64_t seed);

    // One step of the optimiser on a batch; its loss before the step.
    double train(const Batch &batch, const Adam &adam);
    // The mean loss of any number of pieces, without dropout.
    double loss(const Batch &batch);
    // `count` characters after the prompt, each drawn from the model.
    std::vector<int32_t> continue_text(std::vector<int32_t> prompt, int32_t count, std::mt19937_64 *random);

    // For other programs to check: inputs, targets, the loss, and every parameter NAME with its gradient dNAME, without
    // dropout, as FOLDER/NAME.f32.
    void write_gradients(const Batch &batch, const std::string &folder);

    int64_t num_parameters() const;

private:
    struct Block {
        Block(const Sizes &sizes, int32_t num_kv_heads, std::mt19937_64 *random);
        RmsNorm attention_norm, mlp_norm;
        Parameter wq, wk, wv, wo;
        Dense up, down;
        std::unique_ptr<heed::Layer> layer;  // of the current weights
        // From the last forward: the stream before attention and before the MLP, what the steps read.
        std::vector<float> before_attention, attention_in, before_mlp, mlp_in, hidden, active;
    };

    template <typename Visit>
    void for_each_parameter(const Visit &visit);
    heed::LayerConfig layer_config() const;
    heed_layer_args layer_args(const Block &block, int32_t count, bool training) const;
    // Fills logits_ for inputs [count, context].
    void forward(const std::vector<int32_t> &inputs, bool training);
    void backward(const std::vector<int32_t> &inputs, bool training);  // from the gradient in logits_
    void attend(Block *block, int32_t count, bool training);
    void attention_gradients(Block *block, int32_t count, bool training);
    void mlp(Block *block);
    void mlp_gradients(Block *block);

    const Sizes sizes_;
    const int32_t num_kv_heads_;
    std::mt19937_64 random_;
    Parameter embedding_;
    std::vector<Block> blocks_;
    RmsNorm final_norm_;
    Dense to_logits_;
    std::vector<float> cos_, sin_;  // RoPE
    heed::Workspace workspace_;
    heed_execution execution_ = {};
    int32_t step_ = 0;
    std::vector<float> stream_, normal_, logits_, gradient_, scratch_;
};

}  // namespace heed_train
