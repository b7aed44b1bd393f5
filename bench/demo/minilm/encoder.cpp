#include "encoder.h"

#include "parallel.h"

#include <cmath>

namespace minilm {
namespace {

constexpr float layer_norm_epsilon = 1e-12F;
constexpr int64_t row_grain = 64;  // tokens per task: the wide activation of 64 * 1536 floats stays in L2

using Block = Eigen::Ref<const Matrix>;

Matrix read_matrix(Safetensors &weights, const std::string &name, int64_t rows, int64_t columns) {
    const auto values = weights.read(name, {static_cast<uint64_t>(rows), static_cast<uint64_t>(columns)});
    return Eigen::Map<const Matrix>(values.data(), rows, columns);
}

Row read_row(Safetensors &weights, const std::string &name, int64_t columns) {
    const auto values = weights.read(name, {static_cast<uint64_t>(columns)});
    return Eigen::Map<const Row>(values.data(), columns);
}

Linear read_linear(Safetensors &weights, const std::string &name, int64_t outputs, int64_t inputs) {
    return {read_matrix(weights, name + ".weight", outputs, inputs), read_row(weights, name + ".bias", outputs)};
}

LayerNorm read_norm(Safetensors &weights, const std::string &name) {
    return {read_row(weights, name + ".weight", hidden), read_row(weights, name + ".bias", hidden)};
}

Layer read_layer(Safetensors &weights, const std::string &name) {
    Layer layer;
    layer.qkv.weight.resize(3 * hidden, hidden);
    layer.qkv.bias.resize(3 * hidden);
    const char *parts[] = {"query", "key", "value"};
    for (int i = 0; i < 3; i++) {
        const Linear part = read_linear(weights, name + ".attention.self." + parts[i], hidden, hidden);
        layer.qkv.weight.middleRows(i * hidden, hidden) = part.weight;
        layer.qkv.bias.segment(i * hidden, hidden) = part.bias;
    }
    layer.attention_out = read_linear(weights, name + ".attention.output.dense", hidden, hidden);
    layer.attention_norm = read_norm(weights, name + ".attention.output.LayerNorm");
    layer.up = read_linear(weights, name + ".intermediate.dense", intermediate, hidden);
    layer.down = read_linear(weights, name + ".output.dense", hidden, intermediate);
    layer.out_norm = read_norm(weights, name + ".output.LayerNorm");
    return layer;
}

Matrix apply(const Linear &linear, const Block &x) {
    Matrix y(x.rows(), linear.weight.rows());
    y.noalias() = x * linear.weight.transpose();
    y.rowwise() += linear.bias;
    return y;
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

Encoder::Encoder(Safetensors &weights, int threads)
    : threads_(threads),
      word_embeddings_(read_matrix(weights, "embeddings.word_embeddings.weight", vocabulary, hidden)),
      position_embeddings_(read_matrix(weights, "embeddings.position_embeddings.weight", max_tokens, hidden)),
      type_embeddings_(read_matrix(weights, "embeddings.token_type_embeddings.weight", 2, hidden)),
      embedding_norm_(read_norm(weights, "embeddings.LayerNorm")) {
    for (int32_t i = 0; i < num_layers; i++) {
        layers_.push_back(read_layer(weights, "encoder.layer." + std::to_string(i)));
    }
}

Matrix Encoder::embed(const std::vector<Piece> &pieces, size_t batch_size, MeasuredAttention &attention) const {
    Matrix result(static_cast<Eigen::Index>(pieces.size()), hidden);
    for (const Batch &batch : make_batches(pieces, batch_size)) {
        const Matrix embeddings = embed_batch(batch, attention);
        for (Eigen::Index b = 0; b < batch.batch; b++) {
            result.row(static_cast<Eigen::Index>(batch.sources[static_cast<size_t>(b)])) = embeddings.row(b);
        }
    }
    return result;
}

Matrix Encoder::embed_batch(const Batch &batch, MeasuredAttention &attention) const {
    Matrix x = embed_tokens(batch);
    Matrix qkv(x.rows(), 3 * hidden);
    Matrix context(x.rows(), hidden);
    for (const Layer &layer : layers_) {
        parallel_for(threads_, x.rows(), row_grain, [&](int64_t first, int64_t last) {
            qkv.middleRows(first, last - first) = apply(layer.qkv, x.middleRows(first, last - first));
        });
        attention.run({batch.batch, batch.padded_len, batch.lens.data(), qkv.data(), context.data()});
        finish_layer(layer, context, x);
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

void Encoder::finish_layer(const Layer &layer, const Matrix &context, Matrix &x) const {
    parallel_for(threads_, x.rows(), row_grain, [&](int64_t first, int64_t last) {
        auto rows = x.middleRows(first, last - first);
        rows += apply(layer.attention_out, context.middleRows(first, last - first));
        normalise(layer.attention_norm, rows);
        Matrix wide = apply(layer.up, rows);
        gelu(wide);
        rows += apply(layer.down, wide);
        normalise(layer.out_norm, rows);
    });
}

}  // namespace minilm
