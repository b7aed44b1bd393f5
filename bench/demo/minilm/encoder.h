#pragma once
#include "attention.h"
#include "safetensors.h"
#include "text.h"

#include <Eigen/Core>
#include <vector>

namespace minilm {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Row = Eigen::Matrix<float, 1, Eigen::Dynamic>;

constexpr int32_t num_layers = 6;
constexpr int32_t intermediate = 1536;
constexpr int32_t vocabulary = 30522;
constexpr int32_t max_tokens = 512;

// y = x * weight^T + bias
struct Linear {
    Matrix weight;  // [outputs, inputs]
    Row bias;
};

struct LayerNorm {
    Row gain, bias;
};

struct Layer {
    Linear qkv;  // query, key and value projections, one above the other
    Linear attention_out;
    LayerNorm attention_norm;
    Linear up, down;
    LayerNorm out_norm;
};

// all-MiniLM-L6-v2: a BERT encoder (normalised after each block), mean pooling over the valid tokens, unit length.
class Encoder {
public:
    // Throws std::runtime_error when a tensor is missing or has another shape.
    Encoder(Safetensors &weights, int threads);

    // One unit vector per piece, in the order of `pieces`.
    Matrix embed(const std::vector<Piece> &pieces, size_t batch_size, MeasuredAttention &attention) const;

private:
    Matrix embed_batch(const Batch &batch, MeasuredAttention &attention) const;
    Matrix embed_tokens(const Batch &batch) const;
    // x [tokens, hidden] becomes the layer's output. context [tokens, hidden] is the result of attention.
    void finish_layer(const Layer &layer, const Matrix &context, Matrix &x) const;

    int threads_;
    Matrix word_embeddings_, position_embeddings_, type_embeddings_;
    LayerNorm embedding_norm_;
    std::vector<Layer> layers_;
};

}  // namespace minilm
