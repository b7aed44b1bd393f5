// A layer with all that heed_layer_backward knows, and calls that ask for every gradient.
#pragma once

#include <deque>

#include "tests/layer/small_layer.h"

namespace heed_test {

using WeightMember = heed_tensor heed_layer_weights::*;

// The small layer in f32 with biases, clipping, norms of heads and sinks; RoPE in self attention.
struct TrainedLayer : SmallLayer {
    static constexpr WeightMember weight_members[] = {
        &heed_layer_weights::wq,
        &heed_layer_weights::wk,
        &heed_layer_weights::wv,
        &heed_layer_weights::wo,
        &heed_layer_weights::bq,
        &heed_layer_weights::bk,
        &heed_layer_weights::bv,
        &heed_layer_weights::bo,
        &heed_layer_weights::q_norm_weight,
        &heed_layer_weights::q_norm_bias,
        &heed_layer_weights::k_norm_weight,
        &heed_layer_weights::k_norm_bias,
        &heed_layer_weights::sink,
    };

    explicit TrainedLayer(bool cross, heed_qk_norm norm = HEED_QK_NORM_HEAD) {
        config.cross = cross;
        config.clip_qkv = 1.5f;
        config.qk_norm = norm;
        if (!cross) add_rope();
        add(&heed_layer_weights::bq, heads * head_dim);
        add(&heed_layer_weights::bv, kv_heads * head_dim_v);
        add(&heed_layer_weights::bo, dim_out);
        for (int n = 8; n < 12; n++) {
            const bool of_head = norm == HEED_QK_NORM_HEAD;
            add(weight_members[n], of_head ? head_dim : (n < 10 ? heads : kv_heads) * head_dim);
        }
        add(&heed_layer_weights::sink, heads);
    }

private:
    void add(WeightMember member, int32_t count) {
        others_.emplace_back(HEED_F32, count, 20 + others_.size());
        weights.*member = others_.back().tensor();
    }

    std::deque<Elements> others_;
};

// Two sequences of 20 and 13 queries under a bias; in cross attention over a context of 17 and 9 tokens, of which key
// padding hides two more. Gradients are added to ones.
class TrainingCall {
public:
    static constexpr int32_t batch = 2, q_len = 20, context_len = 17;

    TrainingCall(const TrainedLayer &weights, const heed::Layer &layer)
        : layer_(layer), forward_(layer, HEED_F32, batch, q_len), dy_(HEED_F32, batch * q_len * SmallLayer::dim_out, 8),
          context_(HEED_F32, batch * context_len * SmallLayer::dim_in, 9), padding_(batch * context_len, 1),
          args(forward_.args) {
        const bool cross = weights.config.cross;
        const int32_t keys = cross ? context_len : q_len;
        bias_ = Elements(HEED_F32, SmallLayer::heads * q_len * keys, 10);
        padding_[3] = padding_[context_len] = 0;
        args.x = forward_.x.tensor();
        args.y = {};
        args.q_lens = q_lens_;
        args.bias = bias_.tensor();
        args.bias_shape[0] = 1;
        gradients.dy = dy_.tensor();
        want(&gradients.dx, args.x.size);
        want(&gradients.dbias, args.bias.size);
        if (cross) {
            args.context_len = context_len;
            args.context = context_.tensor();
            args.kv_lens = kv_lens_;
            args.key_padding = heed::tensor(padding_.data(), padding_.size());
            want(&gradients.dcontext, args.context.size);
        }
        for (const WeightMember member : TrainedLayer::weight_members) {
            want(&(gradients.dweights.*member), (weights.weights.*member).size);
        }
    }
    TrainingCall(const TrainingCall &) = delete;
    TrainingCall &operator=(const TrainingCall &) = delete;

    heed_status status(const RunBackward &run = heed_layer_backward) const {
        return call_backward(layer_.get(), &args, &gradients, run);
    }
    bool untouched() const {
        return std::all_of(results_.begin(), results_.end(), [](const std::vector<float> &result) {
            return result == std::vector<float>(result.size(), 1.0f);
        });
    }
    void reset() {
        for (std::vector<float> &result : results_) std::fill(result.begin(), result.end(), 1.0f);
    }
    // The n-th gradient, and how to ask for it or not.
    size_t count() const { return results_.size(); }
    const std::vector<float> &result(size_t n) const { return results_[n]; }
    void ask_only(size_t wanted) {
        for (size_t n = 0; n < count(); n++) {
            *tensors_[n] = n == wanted ? heed::tensor(results_[n].data(), results_[n].size()) : heed_tensor{};
        }
    }

private:
    void want(heed_tensor *tensor, int64_t size) {
        results_.emplace_back(static_cast<size_t>(size), 1.0f);
        tensors_.push_back(tensor);
        *tensor = heed::tensor(results_.back().data(), results_.back().size());
    }

    const heed::Layer &layer_;
    GuardedCall forward_;
    const Elements dy_, context_;
    Elements bias_;
    std::vector<uint8_t> padding_;
    const int32_t q_lens_[batch] = {q_len, 13}, kv_lens_[batch] = {context_len, 9};
    std::deque<std::vector<float>> results_;
    std::vector<heed_tensor *> tensors_;

public:
    heed::LayerArgs &args;
    heed::LayerGradients gradients;
};

}  // namespace heed_test
