#include "bench/demo/minilm/encoder.h"

namespace minilm {
namespace {

constexpr int64_t row_grain = 64;  // tokens per task

}  // namespace

Encoder::Encoder(const heed::WeightsFile &weights, size_t batch_size, Pool &pool)
    : batch_size_(batch_size), pool_(pool), memory_(pool.threads()),
      word_embeddings_(find_matrix(weights, "embeddings.word_embeddings.weight", vocabulary, hidden)),
      position_embeddings_(find_matrix(weights, "embeddings.position_embeddings.weight", max_tokens, hidden)),
      type_embeddings_(find_matrix(weights, "embeddings.token_type_embeddings.weight", 2, hidden)),
      embedding_norm_(find_norm(weights, "embeddings.LayerNorm")) {
    for (int32_t i = 0; i < num_layers; i++) {
        const std::string name = "encoder.layer." + std::to_string(i);
        layers_.push_back({AttentionBlock(weights, name, batch_size, pool.threads()), FeedForward(weights, name)});
    }
}

Matrix Encoder::embed(const std::vector<Piece> &pieces, MeasuredAttention &attention) {
    Matrix result(static_cast<Eigen::Index>(pieces.size()), hidden);
    for (const Batch &batch : make_batches(pieces, batch_size_)) {
        const Matrix embeddings = embed_batch(batch, attention);
        for (Eigen::Index b = 0; b < batch.batch; b++) {
            result.row(static_cast<Eigen::Index>(batch.sources[static_cast<size_t>(b)])) = embeddings.row(b);
        }
    }
    return result;
}

Matrix Encoder::embed_batch(const Batch &batch, MeasuredAttention &attention) {
    Matrix x = embed_tokens(batch);
    Matrix attended(x.rows(), hidden);
    for (const Layer &layer : layers_) {
        attention.run(layer.attention, batch, x, attended);
        layer.feed_forward.run(pool_, memory_, attended, x);
    }

    Matrix result(batch.batch, hidden);
    for (int32_t b = 0; b < batch.batch; b++) {
        result.row(b) = x.middleRows(batch.begin(b), batch.len(b)).colwise().mean().normalized();
    }
    return result;
}

Matrix Encoder::embed_tokens(const Batch &batch) const {
    Matrix x(static_cast<Eigen::Index>(batch.ids.size()), hidden);
    pool_.parallel_for(x.rows(), row_grain, [&](int64_t first, int64_t last, int32_t) {
        for (int64_t i = first; i < last; i++) {
            x.row(i) = word_embeddings_.row(batch.ids[static_cast<size_t>(i)]) +
                       position_embeddings_.row(batch.positions[static_cast<size_t>(i)]) + type_embeddings_.row(0);
        }
        normalise(embedding_norm_, x.middleRows(first, last - first));
    });
    return x;
}

}  // namespace minilm
