// What the arrays and fields of one call of heed.Layer say, as heed_layer_args.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <nanobind/stl/string.h>

#include "runtime/python/array.h"
#include "runtime/python/errors.h"
#include "runtime/python/fields.h"

namespace heed::python {

// Arrays of one forward, by name, and where they go; backward has no out.
class LayerCall {
public:
    LayerCall(const nanobind::dict &arrays, const nanobind::dict &fields, const heed_layer_config &config,
              Cache *cache) {
        static constexpr Field call_fields[] = {
            {"training", Kind::boolean, offsetof(heed_layer_args, training)},
            {"dropout_seed", Kind::uint64, offsetof(heed_layer_args, dropout_seed)},
            {"dropout_offset", Kind::uint64, offsetof(heed_layer_args, dropout_offset)},
        };
        set_fields(fields, call_fields, &args_);
        for (const auto [key, value] : arrays) {
            const auto name = nanobind::cast<std::string>(key);
            const bool written = name == "out" || name == "probs" || name == "workspace";
            arrays_.push_back(import_array(name, value, written ? Access::write : Access::read));
        }
        const Array &x = *find("x"), *y = find("out");
        x.check_on(config.device);
        for (const Array &array : arrays_) {
            if (!is_lengths(array.name)) array.check_device(x);
        }
        if (const Array *cu_seqlens = find("cu_seqlens")) {
            set_packed_tokens(x, y, *cu_seqlens, config);
        } else {
            x.check_rank(3, "[batch, q_len, dim_in]");
            x.check_shape({x.shape[0], x.shape[1], config.dim_in}, "[batch, q_len, dim_in]");
            if (y != nullptr) y->check_shape({x.shape[0], x.shape[1], config.dim_out}, "[batch, q_len, dim_out]");
            args_.batch = x.extent(0);
            args_.q_len = x.extent(1);
        }
        x.check_dtype(config.dtype);
        for (const char *name : {"x", "out", "context", "key_padding", "probs"}) {
            if (find(name) != nullptr) find(name)->check_packed();
        }
        args_.x = x.tensor;
        if (y != nullptr) args_.y = y->tensor;
        if (const Array *context = find("context")) set_context(*context, config);
        if (const Array *lens = find("q_lens")) args_.q_lens = lengths_of(*lens, args_.batch);
        if (const Array *lens = find("kv_lens")) args_.kv_lens = lengths_of(*lens, args_.batch);
        args_.cache = cache == nullptr ? nullptr : cache->get();
        set_scores({args_.batch, config.num_heads, args_.q_len, kv_len(config, cache)});
    }

    LayerArgs &args() { return args_; }

    const Array *find(const std::string &name) const {
        for (const Array &array : arrays_) {
            if (array.name == name) return &array;
        }
        return nullptr;
    }

    // What a call on CUDA needs in addition to the layer's, see heed_layer_args.
    size_t joined_mask_bytes(const heed_layer_config &config) const {
        const Array *padding = find("key_padding");
        if (find("mask") == nullptr || find("bias") == nullptr || padding == nullptr) return 0;
        const int64_t heads = args_.mask_shape[1] == 1 ? 1 : config.num_heads;
        const int64_t rows = args_.mask_shape[2] == 1 ? 1 : args_.q_len;
        const int64_t keys = padding->rank == 0 ? 0 : padding->shape[padding->rank - 1];
        return static_cast<size_t>((args_.batch * heads * rows * keys + 127) / 128 * 128);
    }

private:
    static bool is_lengths(const std::string &name) {
        return name == "q_lens" || name == "kv_lens" || name == "cu_seqlens";
    }

    // q_len is the longest sequence's.
    void set_packed_tokens(const Array &x, const Array *y, const Array &cu_seqlens, const heed_layer_config &config) {
        x.check_rank(2, "[total, dim_in]");
        x.check_shape({x.shape[0], config.dim_in}, "[total, dim_in]");
        if (y != nullptr) y->check_shape({x.shape[0], config.dim_out}, "[total, dim_out]");
        cu_seqlens.check_rank(1, "[batch + 1]");
        if (cu_seqlens.shape[0] == 0) refuse("cu_seqlens is empty; it must have batch + 1 elements");
        const int32_t *const sums = lengths_of(cu_seqlens, cu_seqlens.shape[0]);
        args_.batch = cu_seqlens.extent(0) - 1;
        for (int32_t b = 0; b < args_.batch; b++) {
            const int64_t len = int64_t{sums[b + 1]} - sums[b];
            args_.q_len = static_cast<int32_t>(std::clamp<int64_t>(len, args_.q_len, INT32_MAX));
        }
        if (sums[args_.batch] != x.shape[0]) {
            refuse("cu_seqlens[%d] is %d; it must be %d, the tokens of x", args_.batch, sums[args_.batch], x.extent(0));
        }
        args_.cu_seqlens = sums;
    }

    void set_context(const Array &context, const heed_layer_config &config) {
        context.check_rank(3, "[batch, context_len, dim_context]");
        context.check_shape({args_.batch, context.shape[1], config.dim_context}, "[batch, context_len, dim_context]");
        args_.context_len = context.extent(1);
        args_.context = context.tensor;
    }

    // heed_layer_args' kv_len: the longest sequence's, with the tokens of this call.
    int64_t kv_len(const heed_layer_config &config, const Cache *cache) const {
        if (cache == nullptr) return config.cross ? args_.context_len : args_.q_len;
        const heed_kv_view view = cache->view();
        int64_t longest = 0;
        for (int32_t b = 0; b < std::min(view.batch, args_.batch); b++) {
            const int32_t joining = config.cross ? 0 : args_.q_lens == nullptr ? args_.q_len : args_.q_lens[b];
            longest = std::max(longest, int64_t{view.kv_lens[b]} + joining);
        }
        return longest;
    }

    // What is laid over the scores, which are [batch, num_heads, q_len, kv_len].
    void set_scores(const std::vector<int64_t> &scores) {
        constexpr char axes[] = "[batch, num_heads, q_len, kv_len]";
        if (const Array *padding = find("key_padding")) {
            if (args_.cu_seqlens == nullptr) padding->check_shape({scores[0], scores[3]}, "[batch, kv_len]");
            args_.key_padding = padding->tensor;
        }
        if (const Array *probs = find("probs")) {
            if (args_.cu_seqlens == nullptr) probs->check_shape(scores, axes);
            args_.probs = probs->tensor;
        }
        if (const Array *mask = find("mask")) {
            mask->check_broadcast(scores, axes);
            broadcast_layout(*mask, args_.mask_shape, &args_.mask_layout);
            args_.mask = mask->tensor;
        }
        if (const Array *bias = find("bias")) {
            bias->check_broadcast(scores, axes);
            broadcast_layout(*bias, args_.bias_shape, &args_.bias_layout);
            args_.bias = bias->tensor;
        }
    }

    LayerArgs args_;
    std::vector<Array> arrays_;
};

}  // namespace heed::python
