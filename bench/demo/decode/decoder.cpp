#include "bench/demo/decode/decoder.h"

#include <cmath>
#include <random>

#include "bench/machine.h"

namespace heed_decode {
namespace {

heed_tensor view(const std::vector<float> &values) { return heed::tensor(values.data(), values.size()); }

std::vector<float> pooled(const Sizes &sizes, const std::vector<float> &heads, int32_t num_kv_heads) {
    std::vector<float> result(heads.size() / static_cast<size_t>(sizes.num_heads / num_kv_heads));
    const heed_tensor from = view(heads), to = view(result);
    heed::check(heed_mha_to_gqa(sizes.num_heads, num_kv_heads, sizes.head_dim, sizes.d_model, &from, &to));
    return result;
}

}  // namespace

std::vector<float> normal(size_t count, float deviation, uint64_t seed) {
    std::mt19937_64 bits(seed);
    std::normal_distribution<float> distribution(0, deviation);
    std::vector<float> values(count);
    for (float &x : values) x = distribution(bits);
    return values;
}

HeadWeights::HeadWeights(const Sizes &sizes, uint64_t seed) {
    const auto dim = static_cast<size_t>(sizes.d_model), heads = static_cast<size_t>(sizes.num_heads * sizes.head_dim);
    const float deviation = 1 / std::sqrt(static_cast<float>(dim));
    q = normal(heads * dim, deviation, 4 * seed);
    k = normal(heads * dim, deviation, 4 * seed + 1);
    v = normal(heads * dim, deviation, 4 * seed + 2);
    out = normal(dim * heads, deviation, 4 * seed + 3);
}

Decoder::Decoder(const Device &device, const Sizes &sizes, const std::vector<HeadWeights> &weights,
                 int32_t num_kv_heads)
    : device_(device), sizes_(sizes), num_kv_heads_(num_kv_heads) {
    heed::LayerConfig config;
    config.device = device.kind();
    config.dtype = sizes.dtype;
    config.dim_in = sizes.d_model;
    config.num_heads = sizes.num_heads;
    config.num_kv_heads = num_kv_heads;
    config.head_dim = sizes.head_dim;
    config.causal = true;
    config.max_batch = sizes.batch;
    config.max_q_len = max_q_len;
    config.max_kv_len = sizes.prompt_len + sizes.steps;
    config.max_threads = sizes.threads;
    heed::CacheConfig cache;
    cache.storage = HEED_KV_CONTIGUOUS;
    cache.dtype = sizes.dtype;
    cache.batch = sizes.batch;
    cache.capacity = config.max_kv_len;
    for (const HeadWeights &w : weights) {
        const Elements q(sizes.dtype, w.q), k(sizes.dtype, pooled(sizes, w.k, num_kv_heads)),
            v(sizes.dtype, pooled(sizes, w.v, num_kv_heads)), out(sizes.dtype, w.out);
        heed::LayerWeights all;
        all.wq = q.tensor();
        all.wk = k.tensor();
        all.wv = v.tensor();
        all.wo = out.tensor();
        heed::Layer layer(config, all);
        heed::Cache keys(layer, cache);
        layers_.push_back({std::move(layer), std::move(keys)});
    }
    const size_t most = static_cast<size_t>(sizes.batch) * static_cast<size_t>(max_q_len * sizes.d_model);
    workspace_ = std::make_unique<DeviceValues>(device, HEED_F32, layers_.front().layer.workspace_bytes() / 4 + 1);
    x_ = std::make_unique<DeviceValues>(device, sizes.dtype, most);
    y_ = std::make_unique<DeviceValues>(device, sizes.dtype, most);
}

void Decoder::forward(std::vector<float> &x, int32_t q_len) {
    heed::LayerArgs args;
    args.batch = sizes_.batch;
    args.q_len = q_len;
    args.execution.device = device_.kind();
    args.execution.num_threads = sizes_.threads;
    args.execution.workspace = workspace_->tensor().data;
    args.execution.workspace_bytes = layers_.front().layer.workspace_bytes();
    x_->assign(x);
    for (const Layer &layer : layers_) {
        args.x = x_->tensor();
        args.y = y_->tensor();
        args.cache = layer.cache.get();
        layer.layer.forward(args);
        std::swap(x_, y_);
        if (device_.kind() == HEED_CUDA) continue;
        auto *const result = static_cast<float *>(args.y.data);
        const auto *const input = static_cast<const float *>(args.x.data);
        for (size_t i = 0; i < x.size(); i++) result[i] += input[i];
    }
    x_->read(&x);
}

double Decoder::attention_seconds() const {
    const heed_kv_view first = layers_.front().cache.view();
    heed::Problem problem;
    problem.device = device_.kind();
    problem.dtype = problem.kv_dtype = sizes_.dtype;
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
    const auto rows = static_cast<size_t>(sizes_.batch * sizes_.num_heads * sizes_.head_dim);
    const DeviceValues workspace(device_, HEED_F32, plan.workspace_bytes() / 4 + 1), q(device_, sizes_.dtype, rows),
        out(device_, sizes_.dtype, rows);
    q.assign(normal(rows, 1, 99));
    heed::Args args;
    args.q = q.tensor();
    args.out = out.tensor();
    args.workspace = workspace.tensor().data;
    args.workspace_bytes = plan.workspace_bytes();
    device_.synchronize();
    const double start = heed_bench::wall_seconds();
    for (const Layer &layer : layers_) {
        const heed_kv_view keys = layer.cache.view();
        args.k = keys.k;
        args.v = keys.v;
        args.kv_lens = keys.kv_lens;
        plan.execute(args);
    }
    device_.synchronize();
    return heed_bench::wall_seconds() - start;
}

double Decoder::cache_bytes() const {
    const heed_kv_view keys = layers_.front().cache.view();
    const double element_bytes = sizes_.dtype == HEED_F32 ? 4 : 2;
    return element_bytes * 2 * sizes_.head_dim * num_kv_heads_ * keys.kv_lens[0] * sizes_.batch * sizes_.num_layers;
}

}  // namespace heed_decode
