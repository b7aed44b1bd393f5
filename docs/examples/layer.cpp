// A layer with the weights of a file decodes a token of 16 sequences over its cache.
#include <cstdio>
#include <heed/heed.hpp>

int main() {
    // [layer]
    heed::WeightsFile file("model.safetensors");
    heed::LayerConfig config;  // multi-head, multi-query or grouped-query; self or cross
    config.dim_in = 1024, config.num_heads = 8, config.num_kv_heads = 1, config.causal = true;
    config.max_batch = 16, config.max_q_len = 256, config.max_kv_len = 4096;
    heed::LayerWeights weights;  // separate, fused QKV or einsum layout; biases, norms, RoPE tables
    weights.wq = file.find("wq").tensor, weights.wk = file.find("wk").tensor;
    weights.wv = file.find("wv").tensor, weights.wo = file.find("wo").tensor;
    heed::Layer layer(config, weights);  // packs the weights; the file may be closed

    heed::CacheConfig sizes;  // contiguous or paged; the layer's type or int8
    sizes.storage = HEED_KV_PAGED, sizes.batch = 16, sizes.capacity = 4096;
    sizes.page_size = 16, sizes.num_pages = 16 * 4096 / 16;
    heed::Cache cache(layer, sizes);

    std::vector<float> x(16 * 1024, 1.0f), y(16 * 1024);  // one token of each sequence
    heed::LayerArgs args;
    args.batch = 16, args.q_len = 1, args.cache = cache.get();
    args.x = heed::tensor(x.data(), x.size()), args.y = heed::tensor(y.data(), y.size());
    heed::Workspace workspace = layer.make_workspace();
    workspace.attach(args.execution);
    layer.forward(args);  // projections, append to the cache, attention, output projection
    // [/layer]
    // [cache]
    cache.fork(0, 1);      // sequence 1 continues as sequence 0; pages are shared until one of them is written
    layer.forward(args);   // two tokens in each cache now
    cache.truncate(0, 1);  // the last token of sequence 0 is rejected
    // [/cache]
    const heed_kv_view view = cache.view();
    std::printf("tokens in the caches of sequences 0 and 1: %d, %d; y[0] = %f\n", view.kv_lens[0], view.kv_lens[1],
                y[0]);
    return view.kv_lens[0] == 1 && view.kv_lens[1] == 2 ? 0 : 1;
}
