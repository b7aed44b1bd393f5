#pragma once
#include "bench/demo/minilm/model.h"
#include "bench/demo/minilm/pool.h"

#include <vector>

namespace minilm {

// Subtracts each row's mean, scales it to variance 1, then applies the gain and the bias.
void normalise(const LayerNorm &norm, Eigen::Ref<Matrix> x);

// What threads that run feed-forward parts need, each its own.
class FeedForwardMemory {
public:
    explicit FeedForwardMemory(int threads);

private:
    friend class FeedForward;
    struct Part {
        Matrix wide, narrow;
        heed::Workspace workspace;
    };
    std::vector<Part> parts_;
};

// The part of a transformer layer after its attention block, with both normalisations. Products by heed_linear.
class FeedForward {
public:
    // `name`: of the transformer layer.
    FeedForward(const heed::WeightsFile &file, const std::string &name);

    // x [tokens, hidden] becomes the layer's output. attended [tokens, hidden] is the result of the attention block.
    void run(Pool &pool, FeedForwardMemory &memory, const Matrix &attended, Matrix &x) const;

private:
    heed::LinearWeights up_, down_;
    LayerNorm attention_norm_, out_norm_;
};

}  // namespace minilm
