// One forward call of a layer: its sizes and inputs, resolved.
#pragma once

#include <memory>

#include "runtime/layer/layer.h"
#include "runtime/layer/steps.h"

namespace heed {

struct Forward {
    const heed_layer &layer;
    const heed_layer_args &a;
    int32_t longest = 0;  // keys of the longest sequence, which masks, biases and probabilities are shaped by
    LayerSizes sizes = {};
    int32_t line_len = 0;  // tokens of x are [lines, line_len]: a line is a sequence, or holds all packed ones
    HeapArray<uint8_t> combined = {};  // mask and key padding, where the workspace has no part for them
    heed_tensor mask = {}, bias = {};
    std::shared_ptr<const heed_plan> plan = nullptr;
    bool wants_lse = false;      // for gradients
    int64_t gradient_bytes = 0;  // CUDA: of a backward call's workspace after the forward's

    const heed_layer_config &config() const { return layer.config; }
    const Backend &backend() const { return layer.device.backend(); }
    bool packed() const { return a.cu_seqlens != nullptr; }
    int32_t lines() const { return packed() ? 1 : a.batch; }
    int64_t tokens() const { return int64_t{lines()} * line_len; }
    // Those that k and v are projected of.
    int64_t new_tokens() const { return packed() ? line_len : int64_t{a.batch} * sizes.new_tokens; }
    bool combines_masks() const {
        return a.mask.data != nullptr && a.key_padding.data != nullptr && a.bias.data != nullptr;
    }
    // Lines of kv_len elements of the mask that joins the two: [batch][heads][rows], 1 where the mask is broadcast.
    int32_t combined_heads() const { return a.mask_shape[1] == 1 ? 1 : config().num_heads; }
    int32_t combined_rows() const { return a.mask_shape[2] == 1 ? 1 : a.q_len; }
    bool projects_kv() const { return sizes.new_tokens > 0; }
    bool per_key() const {
        return a.mask.data != nullptr || a.bias.data != nullptr || a.key_padding.data != nullptr ||
               a.probs.data != nullptr;
    }
};

// The caller's arguments as a call uses them.
inline heed_layer_args copy_of(heed_layer_args args, const heed_layer &layer) {
    if (args.execution.num_threads == 0) args.execution.num_threads = layer.config.max_threads;
    return args;
}

// ---- forward_checks.cpp

// Reads each count once, 0..most, into the private copy; NULL: all `most`.
heed_status read_lens(const char *name, const int32_t *lens, int32_t batch, int32_t most, int32_t *copy);

// Device and threads.
heed_status check_run(const heed_layer &layer, const heed_execution &execution);
heed_status check_workspace(size_t needed, const heed_execution &execution);

// The part of the workspace that the layer may write, with what a call of these sizes needs beyond it.
heed_status add_workspace(const heed_layer &layer, const heed_execution &execution, int64_t more, MemoryRanges *ranges);

// Everything that is known without the tensors: dims, threads, the source of k and v.
heed_status check_sizes(const Forward &f);

// past, new_lens and, without a cache, kv_lens or cu_seqlens in the workspace: the call's private copies.
heed_status read_lengths(const Forward &f, const LayerMemory &memory);

// Fills f->longest, f->sizes and f->line_len; INVALID_ARGUMENT where the cache or the RoPE tables end,
// WORKSPACE_TOO_SMALL for masks that are joined on CUDA.
heed_status resolve_sizes(Forward *f, const LayerMemory &memory);

// The tensors that attention does not check itself: y, probs, x, context, masks, lengths, workspace.
heed_status check_tensors(const Forward &f);

// The part of check_tensors that is read, and the workspace.
heed_status add_inputs(const Forward &f, MemoryRanges *ranges);

// ---- forward.cpp

// q, k and v of x and context into the workspace, as the projections leave them.
heed_status project_inputs(const Forward &f, const LayerRun &run, const void *x, const void *context);

// Their norms and rotations.
heed_status shape_heads(const Forward &f, const LayerRun &run);

// ---- forward_inputs.cpp

// The attention problem of the call and its plan.
heed_status make_plan(Forward *f);

// Lengths, offsets and positions of this call, in the workspace.
void fill_lengths(const Forward &f, const LayerMemory &memory);

// f->mask and f->bias, with the key padding.
heed_status fill_scores(Forward *f, const LayerMemory &memory);

heed_args attention_args(const Forward &f, const LayerMemory &memory);

}  // namespace heed
