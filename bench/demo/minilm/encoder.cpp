#include "encoder.h"

#include "parallel.h"

#include <cmath>

namespace minilm {
namespace {

constexpr float layer_norm_epsilon = 1e-12F;
constexpr int64_t row_grain = 64;  // tokens per task: the wide activation of 64 * 1536 floats stays in L2

Layer find_layer(const heed::WeightsFile &weights, const std::string &name, size_t batch_size, int threads) {
    return {AttentionBlock(weights, name, batch_size, threads),
            find_norm(weights, name + ".attention.output.LayerNorm"),
            find_linear(weights, name + ".intermediate.dense", intermediate, hidden),
            find_linear(weights, name + ".output.dense", hidden, intermediate),
            find_norm(weights, name + ".output.LayerNorm")};
}

void normalise(const LayerNorm &norm, Eigen::Ref<Matrix> x) {
    for (Eigen::Index i = 0; i < x.rows(); i++) {
        auto row = x.row(i);
        row.array() -= row.mean();
        const float variance = row.squaredNorm() / static_cast<float>(row.size());
        row = row.cwiseProduct(norm.gain) / std::sqrt(variance + layer_norm_epsilon) + norm.bias;
    }
}

// x * Phi(x), with the exact normal distribution function.
void gelu(Matrix &x) {
    const float inverse_sqrt_2 = 0.70710678F;
    for (Eigen::Index i = 0; i < x.size(); i++) {
        const float value = x.data()[i];
        x.data()[i] = 0.5F * value * (1.0F + std::erf(value * inverse_sqrt_2));
    }
}

}  // namespace

Encoder::Encoder(const heed::WeightsFile &weights, size_t batch_size, int threads)
    : batch_size_(batch_size), threads_(threads),
      word_embeddings_(find_matrix(weights, "embeddings.word_embeddings.weight", vocabulary, hidden)),
      position_embeddings_(find_matrix(weights, "embeddings.position_embeddings.weight", max_tokens, hidden)),
      type_embeddings_(find_matrix(weights, "embeddings.token_type_embeddings.weight", 2, hidden)),
      embedding_norm_(find_norm(weights, "embeddings.LayerNorm")) {
    for (int32_t i = 0; i < num_layers; i++) {
        layers_.push_back(find_layer(weights, "encoder.layer." + std::to_string(i), batch_size, threads));
    }
}

Matrix Encoder::embed(const std::vector<Piece> &pieces, MeasuredAttention &attention) const {
    Matrix result(static_cast<Eigen::Index>(pieces.size()), hidden);
    for (const Batch &batch : make_batches(pieces, batch_size_)) {
        const Matrix embeddings = embed_batch(batch, attention);
        for (Eigen::Index b = 0; b < batch.batch; b++) {
            result.row(static_cast<Eigen::Index>(batch.sources[static_cast<size_t>(b)])) = embeddings.row(b);
        }
    }
    return result;
}

Matrix Encoder::embed_batch(const Batch &batch, MeasuredAttention &attention) const {
    Matrix x = embed_tokens(batch);
    Matrix attended(x.rows(), hidden);
    for (const Layer &layer : layers_) {
        attention.run(layer.attention, batch, x, attended);
        finish_layer(layer, attended, x);
    }

    Matrix result(batch.batch, hidden);
    for (Eigen::Index b = 0; b < batch.batch; b++) {
        const auto valid = x.middleRows(b * batch.padded_len, batch.lens[static_cast<size_t>(b)]);
        result.row(b) = valid.colwise().mean().normalized();
    }
    return result;
}

Matrix Encoder::embed_tokens(const Batch &batch) const {
    Matrix x(batch.batch * batch.padded_len, hidden);
    for (Eigen::Index i = 0; i < x.rows(); i++) {
        x.row(i) = word_embeddings_.row(batch.ids[static_cast<size_t>(i)]) +
                   position_embeddings_.row(i % batch.padded_len) + type_embeddings_.row(0);
    }
    normalise(embedding_norm_, x);
    return x;
}

void Encoder::finish_layer(const Layer &layer, const Matrix &attended, Matrix &x) const {
    parallel_for(threads_, x.rows(), row_grain, [&](int64_t first, int64_t last) {
        auto rows = x.middleRows(first, last - first);
        rows += attended.middleRows(first, last - first);
        normalise(layer.attention_norm, rows);
        Matrix wide = apply(layer.up, rows);
        gelu(wide);
        rows += apply(layer.down, wide);
        normalise(layer.out_norm, rows);
    });
}

}  // namespace minilm
