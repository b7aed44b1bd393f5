#include "bench/demo/minilm/attention.h"

#include "bench/machine.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace minilm {
namespace {

heed::Layer make_layer(const AttentionBlock &block, size_t max_batch, int threads) {
    heed::LayerConfig config;
    config.dim_in = hidden;
    config.num_heads = num_heads;
    config.num_kv_heads = num_heads;
    config.head_dim = head_dim;
    config.weight_layout = HEED_WEIGHTS_SEPARATE;
    config.max_batch = static_cast<int32_t>(max_batch);
    config.max_q_len = max_tokens;
    config.max_threads = threads;
    heed::LayerWeights weights;
    weights.wq = tensor(block.query.weight);
    weights.wk = tensor(block.key.weight);
    weights.wv = tensor(block.value.weight);
    weights.wo = tensor(block.out.weight);
    weights.bq = tensor(block.query.bias);
    weights.bk = tensor(block.key.bias);
    weights.bv = tensor(block.value.bias);
    weights.bo = tensor(block.out.bias);
    return heed::Layer(config, weights);
}

double flop_of(const Batch &batch) {
    double tokens = 0, pairs = 0;
    for (int32_t b = 0; b < batch.batch; b++) {
        const double len = batch.len(b);
        tokens += len;
        pairs += len * len;
    }
    return 4 * 2.0 * hidden * hidden * tokens + 2 * 2.0 * hidden * pairs;
}

// One query of one head against the sequence's kv_len keys. `probs` is scratch of kv_len floats.
void naive_row(const float *q, const float *k, const float *v, int32_t kv_len, float *probs, float *out) {
    const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
    float row_max = -INFINITY;
    for (int32_t j = 0; j < kv_len; j++) {
        float dot = 0;
        for (int32_t d = 0; d < head_dim; d++) dot += q[d] * k[j * hidden + d];
        probs[j] = dot * scale;
        row_max = std::max(row_max, probs[j]);
    }
    float row_sum = 0;
    for (int32_t j = 0; j < kv_len; j++) {
        probs[j] = std::exp(probs[j] - row_max);
        row_sum += probs[j];
    }
    std::fill(out, out + head_dim, 0.0F);
    for (int32_t j = 0; j < kv_len; j++) {
        for (int32_t d = 0; d < head_dim; d++) out[d] += probs[j] / row_sum * v[j * hidden + d];
    }
}

}  // namespace

AttentionBlock::AttentionBlock(const heed::WeightsFile &file, const std::string &name, size_t max_batch, int threads)
    : query(find_linear(file, name + ".attention.self.query", hidden, hidden)),
      key(find_linear(file, name + ".attention.self.key", hidden, hidden)),
      value(find_linear(file, name + ".attention.self.value", hidden, hidden)),
      out(find_linear(file, name + ".attention.output.dense", hidden, hidden)),
      layer(make_layer(*this, max_batch, threads)) {}

void naive_attention(const AttentionBlock &block, const Batch &batch, const Matrix &x, Pool &pool, Matrix &y) {
    pool.parallel_for(batch.batch, 1, [&](int64_t index, int64_t, int32_t) {
        const auto b = static_cast<int32_t>(index);
        const int32_t len = batch.len(b);
        const auto rows = x.middleRows(batch.begin(b), len);
        const Matrix q = apply(block.query, rows), k = apply(block.key, rows), v = apply(block.value, rows);
        Matrix heads(len, hidden);
        std::vector<float> probs(static_cast<size_t>(len));
        for (int64_t h = 0; h < hidden; h += head_dim) {
            for (int32_t i = 0; i < len; i++) {
                naive_row(&q(i, h), &k(0, h), &v(0, h), len, probs.data(), &heads(i, h));
            }
        }
        y.middleRows(batch.begin(b), len) = apply(block.out, heads);
    });
}

void MeasuredAttention::run(const AttentionBlock &block, const Batch &batch, const Matrix &x, Matrix &y) {
    const double start = heed_bench::wall_seconds();
    run_heed(block, batch, x, y);
    totals_.heed_seconds += heed_bench::wall_seconds() - start;
    totals_.flop += flop_of(batch);
    if (with_naive_) run_naive(block, batch, x, y);
}

void MeasuredAttention::run_heed(const AttentionBlock &block, const Batch &batch, const Matrix &x, Matrix &y) {
    heed::LayerArgs args;
    args.batch = batch.batch;
    args.q_len = batch.longest;
    args.x = tensor(x);
    args.y = tensor(y);
    args.cu_seqlens = batch.cu_seqlens.data();
    std::vector<int32_t> equal_pieces;
    if (ignore_lengths_) {
        const auto tokens = static_cast<int32_t>(x.rows());
        for (int32_t b = 0; b <= batch.batch; b++) equal_pieces.push_back(tokens * b / batch.batch);
        args.cu_seqlens = equal_pieces.data();
    }
    args.execution.num_threads = pool_.threads();
    args.execution.pool = pool_.for_heed();
    workspace_.attach(args.execution);
    block.layer.forward(args);
}

void MeasuredAttention::run_naive(const AttentionBlock &block, const Batch &batch, const Matrix &x,
                                  const Matrix &heed_y) {
    naive_y_.resize(heed_y.rows(), heed_y.cols());
    const double start = heed_bench::wall_seconds();
    naive_attention(block, batch, x, pool_, naive_y_);
    totals_.naive_seconds += heed_bench::wall_seconds() - start;
    for (Eigen::Index i = 0; i < heed_y.size(); i++) {
        const double naive = naive_y_.data()[i];
        const double difference = std::abs(static_cast<double>(heed_y.data()[i]) - naive);
        totals_.largest_value = std::max(totals_.largest_value, std::abs(naive));
        totals_.largest_difference =
            std::isnan(difference) ? INFINITY : std::max(totals_.largest_difference, difference);
    }
}

}  // namespace minilm
