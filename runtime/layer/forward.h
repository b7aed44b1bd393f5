// One forward call of a layer: its sizes and inputs, resolved.
#pragma once

#include <memory>

#include "layer/layer.h"

namespace heed {

struct Forward {
    const heed_layer &layer;
    const heed_layer_args &a;
    int32_t longest = 0;  // keys of the longest sequence, which masks, biases and probabilities are shaped by
    LayerSizes sizes = {};
    HeapArray<uint8_t> combined = {};  // mask and key padding, where there is a bias too
    heed_tensor mask = {}, bias = {};
    std::shared_ptr<const heed_plan> plan = nullptr;

    const heed_layer_config &config() const { return layer.config; }
    bool projects_kv() const { return sizes.new_tokens > 0; }
    bool per_key() const {
        return a.mask.data != nullptr || a.bias.data != nullptr || a.key_padding.data != nullptr ||
               a.probs.data != nullptr;
    }
};

// ---- forward_checks.cpp

// Reads each count once, 0..most, into the private copy; NULL: all `most`.
heed_status read_lens(const char *name, const int32_t *lens, int32_t batch, int32_t most, int32_t *copy);

heed_status check_threads(const heed_layer &layer, const heed_execution &execution);
heed_status check_workspace(const heed_layer &layer, const heed_execution &execution);

// The part of the workspace that the layer may write.
heed_status add_workspace(const heed_layer &layer, const heed_execution &execution, MemoryRanges *ranges);

// Everything that is known without the tensors: dims, threads, the source of k and v.
heed_status check_sizes(const Forward &f);

// past, new_lens and, without a cache, kv_lens in the workspace: the call's private copies.
heed_status read_lengths(const Forward &f, const LayerMemory &memory);

// Fills f->longest and f->sizes; INVALID_ARGUMENT where the cache or the RoPE tables end.
heed_status resolve_sizes(Forward *f, const LayerMemory &memory);

// The tensors that attention does not check itself: y, probs, x, memory, masks, lengths, workspace.
heed_status check_tensors(const Forward &f);

// ---- forward_inputs.cpp

// The attention problem of the call and its plan.
heed_status make_plan(Forward *f);

// Lengths, offsets and positions of this call, in the workspace.
void fill_lengths(const Forward &f, const LayerMemory &memory);

// f->mask and f->bias, with the key padding.
heed_status fill_scores(Forward *f, const LayerMemory &memory);

heed_args attention_args(const Forward &f, const LayerMemory &memory);

}  // namespace heed
