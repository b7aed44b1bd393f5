#pragma once
#include "attention.h"
#include "model.h"
#include "text.h"

#include <vector>

namespace minilm {

struct Layer {
    AttentionBlock attention;
    LayerNorm attention_norm;
    Linear up, down;
    LayerNorm out_norm;
};

// all-MiniLM-L6-v2: a BERT encoder (normalised after each block), mean pooling over the valid tokens, unit length.
class Encoder {
public:
    // `weights` must outlive the encoder. Throws std::runtime_error when a tensor is missing or has another shape.
    Encoder(const heed::WeightsFile &weights, size_t batch_size, int threads);

    // Memory for the attention of one running call of embed.
    heed::Workspace make_workspace() const { return layers_.front().attention.layer.make_workspace(); }

    // One unit vector per piece, in the order of `pieces`.
    Matrix embed(const std::vector<Piece> &pieces, MeasuredAttention &attention) const;

private:
    Matrix embed_batch(const Batch &batch, MeasuredAttention &attention) const;
    Matrix embed_tokens(const Batch &batch) const;
    // x [tokens, hidden] becomes the layer's output. attended [tokens, hidden] is the result of the attention block.
    void finish_layer(const Layer &layer, const Matrix &attended, Matrix &x) const;

    size_t batch_size_;
    int threads_;
    MatrixView word_embeddings_, position_embeddings_, type_embeddings_;
    LayerNorm embedding_norm_;
    std::vector<Layer> layers_;
};

}  // namespace minilm
