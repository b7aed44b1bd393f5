#pragma once
#include "bench/demo/minilm/model.h"
#include "bench/demo/minilm/pool.h"
#include "bench/demo/minilm/text.h"

#include <utility>

namespace minilm {

// A transformer layer's attention block: projections of x to q, k and v, attention, projection of the heads' outputs.
struct AttentionBlock {
    // `name`: of the transformer layer. For batches of at most `max_batch` pieces of at most max_tokens.
    AttentionBlock(const heed::WeightsFile &file, const std::string &name, size_t max_batch, int threads);

    Linear query, key, value, out;
    heed::Layer layer;  // Heed's, of the same weights
};

// By Eigen and the textbook loops, one sequence at a time: projections; scores, softmax, weighted sum; projection.
void naive_attention(const AttentionBlock &block, const Batch &batch, const Matrix &x, Pool &pool, Matrix &y);

// Sums over the blocks of one run of the encoder.
struct AttentionTotals {
    double heed_seconds = 0, naive_seconds = 0;
    double flop = 0;                                   // of tokens and of pairs of them in one piece
    double largest_difference = 0, largest_value = 0;  // of the naive output
};

// Runs Heed and, when asked, the naive block on the same input; measures both and compares every element.
class MeasuredAttention {
public:
    // `pool` must outlive the object.
    MeasuredAttention(heed::Workspace workspace, Pool &pool, bool ignore_lengths, bool with_naive)
        : workspace_(std::move(workspace)), pool_(pool), ignore_lengths_(ignore_lengths), with_naive_(with_naive) {}

    // x and y: [tokens, hidden].
    void run(const AttentionBlock &block, const Batch &batch, const Matrix &x, Matrix &y);
    AttentionTotals take_totals() { return std::exchange(totals_, {}); }

private:
    void run_heed(const AttentionBlock &block, const Batch &batch, const Matrix &x, Matrix &y);
    void run_naive(const AttentionBlock &block, const Batch &batch, const Matrix &x, const Matrix &heed_y);

    heed::Workspace workspace_;
    Pool &pool_;
    bool ignore_lengths_;
    bool with_naive_;
    Matrix naive_y_;
    AttentionTotals totals_;
};

}  // namespace minilm
