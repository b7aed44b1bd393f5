#include "decoder.h"

#include <chrono>
#include <cmath>
#include <random>

namespace heed_decode {
namespace {

std::vector<float> normal(size_t count, float deviation, uint64_t seed) {
    std::mt19937_64 bits(seed);
    std::normal_distribution<float> distribution(0, deviation);
    std::vector<float> values(count);
    for (float &x : values) x = distribution(bits);
    return values;
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

heed_tensor view(const std::vector<float> &values) { return heed::tensor(values.data(), values.size()); }

std::vector<float> pooled(const Sizes &sizes, const std::vector<float> &heads, int32_t num_kv_heads) {
    std::vector<float> result(heads.size() / static_cast<size_t>(sizes.num_heads / num_kv_heads));
    const heed_tensor from = view(heads), to = view(result);
    heed::check(heed_mha_to_gqa(sizes.num_heads, num_kv_heads, sizes.head_dim, sizes.d_model, &from, &to));
    return result;
}

}  // namespace

HeadWeights::HeadWeights(const Sizes &sizes, uint64_t seed) {
    const auto dim = static_cast<size_t>(sizes.d_model), heads = static_cast<size_t>(sizes.num_heads * sizes.head_dim);
    const float deviation = 1 / std::sqrt(static_cast<float>(dim));
    q = normal(heads * dim, deviation, 4 * seed);
    k = normal(heads * dim, deviation, 4 * seed + 1);
    v = normal(heads * dim, deviation, 4 * seed + 2);
    out = normal(dim * heads, deviation, 4 * seed + 3);
}

Decoder::Decoder(const Sizes &sizes, const std::vector<HeadWeights> &weights, int32_t num_kv_heads)
    : sizes_(sizes), num_kv_heads_(num_kv_heads) {
    heed::LayerConfig config;
    config.dim_in = sizes.d_model;
    config.num_heads = sizes.num_heads;
    config.num_kv_heads = num_kv_heads;
    config.head_dim = sizes.head_dim;
    config.causal = true;
    config.max_batch = sizes.batch;
    config.max_q_len = 256;
    config.max_kv_len = sizes.prompt_len + sizes.steps;
    config.max_threads = sizes.threads;
    heed::CacheConfig cache;
    cache.storage = HEED_KV_CONTIGUOUS;
    cache.batch = sizes.batch;
    cache.capacity = config.max_kv_len;
    for (const HeadWeights &w : weights) {
        const std::vector<float> k = pooled(sizes, w.k, num_kv_heads), v = pooled(sizes, w.v, num_kv_heads);
        heed::LayerWeights all;
        all.wq = view(w.q);
        all.wk = view(k);
        all.wv = view(v);
        all.wo = view(w.out);
        heed::Layer layer(config, all);
        heed::Cache keys(layer, cache);
        layers_.push_back({std::move(layer), std::move(keys)});
    }
    workspace_ = std::make_unique<heed::Workspace>(layers_.front().layer.make_workspace());
}

void Decoder::forward(std::vector<float> &x, int32_t q_len) {
    y_.resize(x.size());
    heed::LayerArgs args;
    args.batch = sizes_.batch;
    args.q_len = q_len;
    args.execution.num_threads = sizes_.threads;
    workspace_->attach(args.execution);
    args.x = view(x);
    args.y = view(y_);
    for (const Layer &layer : layers_) {
        args.cache = layer.cache.get();
        layer.layer.forward(args);
        for (size_t i = 0; i < x.size(); i++) x[i] += y_[i];
    }
}

double Decoder::attention_seconds() const {
    const heed_kv_view first = layers_.front().cache.view();
    heed::Problem problem;
    problem.batch = sizes_.batch;
    problem.num_heads = sizes_.num_heads;
    problem.num_kv_heads = num_kv_heads_;
    problem.head_dim = problem.head_dim_v = sizes_.head_dim;
    problem.max_q_len = 1;
    problem.max_kv_len = first.capacity;
    problem.has_kv_lens = true;
    problem.max_threads = sizes_.threads;
    problem.k_layout = first.k_layout;
    problem.v_layout = first.v_layout;
    const heed::Plan plan(problem);
    const heed::Workspace workspace = plan.make_workspace();
    const std::vector<float> q = normal(static_cast<size_t>(sizes_.batch * sizes_.num_heads * sizes_.head_dim), 1, 99);
    std::vector<float> out(q.size());
    heed::Args args;
    args.q = view(q);
    args.out = view(out);
    workspace.attach(args);
    const double start = seconds();
    for (const Layer &layer : layers_) {
        const heed_kv_view keys = layer.cache.view();
        args.k = keys.k;
        args.v = keys.v;
        args.kv_lens = keys.kv_lens;
        plan.execute(args);
    }
    return seconds() - start;
}

double Decoder::cache_bytes() const {
    const heed_kv_view keys = layers_.front().cache.view();
    return 4.0 * 2 * sizes_.head_dim * num_kv_heads_ * keys.kv_lens[0] * sizes_.batch * sizes_.num_layers;
}

}  // namespace heed_decode
