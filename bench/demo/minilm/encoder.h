#pragma once
#include "bench/demo/minilm/attention.h"
#include "bench/demo/minilm/feed_forward.h"
#include "bench/demo/minilm/model.h"
#include "bench/demo/minilm/text.h"

#include <vector>

namespace minilm {

struct Layer {
    AttentionBlock attention;
    FeedForward feed_forward;
};

// all-MiniLM-L6-v2: a BERT encoder (normalised after each block), mean pooling over the valid tokens, unit length.
class Encoder {
public:
    // `weights` and `pool` must outlive the encoder. Throws std::runtime_error when a tensor is missing or has another
    // shape.
    Encoder(const heed::WeightsFile &weights, size_t batch_size, Pool &pool);

    // Memory for the attention of one running call of embed.
    heed::Workspace make_workspace() const { return layers_.front().attention.layer.make_workspace(); }

    // One unit vector per piece, in the order of `pieces`.
    Matrix embed(const std::vector<Piece> &pieces, MeasuredAttention &attention);

private:
    Matrix embed_batch(const Batch &batch, MeasuredAttention &attention);
    Matrix embed_tokens(const Batch &batch) const;

    size_t batch_size_;
    Pool &pool_;
    FeedForwardMemory memory_;
    MatrixView word_embeddings_, position_embeddings_, type_embeddings_;
    LayerNorm embedding_norm_;
    std::vector<Layer> layers_;
};

}  // namespace minilm
