#include "bench/demo/minilm/feed_forward.h"

#include <cmath>
#include <unsupported/Eigen/SpecialFunctions>

namespace minilm {
namespace {

constexpr float layer_norm_epsilon = 1e-12F;
constexpr int64_t row_grain = 96;  // tokens per task: its wide activation stays in L2

heed::LinearWeights pack(const Linear &linear) {
    return {static_cast<int32_t>(linear.weight.cols()), static_cast<int32_t>(linear.weight.rows()),
            tensor(linear.weight), tensor(linear.bias)};
}

// y [tokens, outputs] of x [tokens, inputs], by the calling thread alone.
void multiply(const heed::LinearWeights &weights, const heed::Workspace &workspace, const Eigen::Ref<const Matrix> &x,
              Eigen::Ref<Matrix> y) {
    heed_linear_out out = {};
    out.num_heads = 1;
    out.head_dim = static_cast<int32_t>(y.cols());
    out.out = tensor(y);
    heed_linear_args args = {};
    args.struct_size = sizeof(args);
    args.batch = 1;
    args.len = static_cast<int32_t>(x.rows());
    args.x = tensor(x);
    args.num_outs = 1;
    args.outs = &out;
    args.execution.num_threads = 1;
    workspace.attach(args.execution);
    weights.run(args);
}

// x * Phi(x), with the normal distribution function by Eigen's rational function for erf, exact to a few units of
// 2^-24.
void gelu(Eigen::Ref<Matrix> x) {
    const float sqrt_half = 0.70710678F;
    for (Eigen::Index i = 0; i < x.rows(); i++) {
        auto row = x.row(i).array();
        row *= 0.5F * (1.0F + (row * sqrt_half).erf());
    }
}

}  // namespace

void normalise(const LayerNorm &norm, Eigen::Ref<Matrix> x) {
    for (Eigen::Index i = 0; i < x.rows(); i++) {
        auto row = x.row(i);
        row.array() -= row.mean();
        const float variance = row.squaredNorm() / static_cast<float>(row.size());
        row = row.cwiseProduct(norm.gain) * (1 / std::sqrt(variance + layer_norm_epsilon)) + norm.bias;
    }
}

FeedForwardMemory::FeedForwardMemory(int threads) {
    // The order in which heed_linear reads its rows: those of a task, and of a tile more.
    constexpr size_t bytes = sizeof(float) * intermediate * (row_grain + 32);
    for (int i = 0; i < threads; i++) {
        parts_.push_back({Matrix(row_grain, intermediate), Matrix(row_grain, hidden), heed::Workspace(bytes)});
    }
}

FeedForward::FeedForward(const heed::WeightsFile &file, const std::string &name)
    : up_(pack(find_linear(file, name + ".intermediate.dense", intermediate, hidden))),
      down_(pack(find_linear(file, name + ".output.dense", hidden, intermediate))),
      attention_norm_(find_norm(file, name + ".attention.output.LayerNorm")),
      out_norm_(find_norm(file, name + ".output.LayerNorm")) {}

void FeedForward::run(Pool &pool, FeedForwardMemory &memory, const Matrix &attended, Matrix &x) const {
    pool.parallel_for(x.rows(), row_grain, [&](int64_t first, int64_t last, int32_t thread) {
        FeedForwardMemory::Part &part = memory.parts_[static_cast<size_t>(thread)];
        auto rows = x.middleRows(first, last - first);
        auto wide = part.wide.topRows(last - first), narrow = part.narrow.topRows(last - first);
        rows += attended.middleRows(first, last - first);
        normalise(attention_norm_, rows);
        multiply(up_, part.workspace, rows, wide);
        gelu(wide);
        multiply(down_, part.workspace, wide, narrow);
        rows += narrow;
        normalise(out_norm_, rows);
    });
}

}  // namespace minilm
