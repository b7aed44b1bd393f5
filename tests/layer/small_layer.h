// A small attention layer with random weights, and calls of it in guarded memory.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "heed/heed.hpp"
#include "tests/layer/layer_call.h"
#include "tests/support/guard.h"
#include "tests/support/make_attention.h"

namespace heed_test {

// Random elements of a dtype.
class Elements {
public:
    Elements() = default;
    Elements(heed_dtype dtype, int64_t count, uint64_t seed, float size = 1) : dtype_(dtype) {
        Rng rng(seed);
        for (int64_t i = 0; i < count; i++) push(size * rng.normal());
    }
    void push(float x) {
        if (dtype_ == HEED_F32) wide_.push_back(x);
        if (dtype_ != HEED_F32) narrow_.push_back(to_bits(dtype_, x));
    }
    float operator[](size_t i) const { return dtype_ == HEED_F32 ? wide_[i] : from_bits(dtype_, narrow_[i]); }
    void set(size_t i, float x) {
        if (dtype_ == HEED_F32) wide_[i] = x;
        if (dtype_ != HEED_F32) narrow_[i] = to_bits(dtype_, x);
    }
    size_t size() const { return dtype_ == HEED_F32 ? wide_.size() : narrow_.size(); }
    heed_tensor tensor() const {
        if (size() == 0) return {};
        return dtype_ == HEED_F32 ? heed::tensor(wide_.data(), wide_.size())
                                  : heed::tensor(narrow_.data(), narrow_.size(), dtype_);
    }

private:
    heed_dtype dtype_ = HEED_F32;
    std::vector<float> wide_;
    std::vector<uint16_t> narrow_;
};

// dim_in 48, 4 heads on 2 of 16 and 12 elements, dim_out 40; up to 3 sequences, 24 queries, 40 keys.
struct SmallLayer {
    static constexpr int32_t dim_in = 48, dim_out = 40, heads = 4, kv_heads = 2, head_dim = 16, head_dim_v = 12;

    explicit SmallLayer(heed_dtype dtype = HEED_F32) {
        config.device = test_device();
        config.dtype = dtype;
        config.dim_in = dim_in;
        config.dim_out = dim_out;
        config.num_heads = heads;
        config.num_kv_heads = kv_heads;
        config.head_dim = head_dim;
        config.head_dim_v = head_dim_v;
        config.causal = true;
        config.max_batch = 3;
        config.max_q_len = 24;
        config.max_kv_len = 40;
        const float size = 1 / std::sqrt(static_cast<float>(dim_in));
        wq = Elements(dtype, heads * head_dim * dim_in, 1, size);
        wk = Elements(dtype, kv_heads * head_dim * dim_in, 2, size);
        wv = Elements(dtype, kv_heads * head_dim_v * dim_in, 3, size);
        wo = Elements(dtype, dim_out * heads * head_dim_v, 4, size);
        bk = Elements(dtype, kv_heads * head_dim, 5);
        weights.wq = wq.tensor();
        weights.wk = wk.tensor();
        weights.wv = wv.tensor();
        weights.wo = wo.tensor();
        weights.bk = bk.tensor();
    }

    // Rotates half of each head; 40 positions.
    void add_rope() {
        config.rotary_dim = 8;
        config.max_position = 40;
        cos = Elements(HEED_F32, 0, 0);
        sin = Elements(HEED_F32, 0, 0);
        for (int32_t position = 0; position < 40; position++) {
            for (int32_t n = 0; n < 4; n++) {
                const double angle = position * std::pow(10.0, -n);
                cos.push(static_cast<float>(std::cos(angle)));
                sin.push(static_cast<float>(std::sin(angle)));
            }
        }
        weights.rope_cos = cos.tensor();
        weights.rope_sin = sin.tensor();
    }

    // The first of two heads of keys and values serves all heads of queries.
    void drop_kv_head() {
        config.num_kv_heads = 1;
        for (heed_tensor *tensor : {&weights.wk, &weights.wv, &weights.bk}) tensor->size /= 2;
    }

    // Shorter heads, of the leading elements.
    void shorten_heads(int32_t dim, int32_t dim_v) {
        config.head_dim = dim;
        config.head_dim_v = dim_v;
        weights.wq.size = int64_t{heads} * dim * dim_in;
        weights.wk.size = int64_t{kv_heads} * dim * dim_in;
        weights.wv.size = int64_t{kv_heads} * dim_v * dim_in;
        weights.wo.size = int64_t{dim_out} * heads * dim_v;
        weights.bk.size = int64_t{kv_heads} * dim;
    }

    heed::Layer make() const {
        enter_test_device();
        return heed::Layer(config, weights);
    }

    heed::LayerConfig config;
    heed::LayerWeights weights;
    Elements wq, wk, wv, wo, bk, cos, sin;
};

inline heed::CacheConfig cache_config(heed_kv_storage storage, heed_dtype dtype = HEED_F32, int32_t batch = 2) {
    heed::CacheConfig c;
    c.storage = storage;
    c.dtype = dtype;
    c.batch = batch;
    c.capacity = 40;
    c.num_pages = 12;
    c.page_size = 7;
    return c;
}

// One forward call: x, y and exactly the workspace that the layer asks for, in guarded memory.
class GuardedCall {
public:
    GuardedCall(const heed::Layer &layer, heed_dtype dtype, int32_t batch, int32_t q_len, uint64_t seed = 7)
        : dtype_(dtype), layer_(layer), x(dtype, int64_t{batch} * q_len * SmallLayer::dim_in, seed),
          y_(static_cast<size_t>(int64_t{batch} * q_len * SmallLayer::dim_out * element_bytes(dtype)), Flush::rear),
          workspace_((heed_layer_workspace_bytes(layer.get()) + 127) / 128 * 128, Flush::rear) {
        args.batch = batch;
        args.q_len = q_len;
        args.y = {y_.data(), int64_t{batch} * q_len * SmallLayer::dim_out, dtype};
        args.execution.device = test_device();
        args.execution.workspace = workspace_.data();
        args.execution.workspace_bytes = heed_layer_workspace_bytes(layer.get());
    }

    heed_status status() {
        args.x = x.tensor();
        return call_forward(layer_.get(), &args);
    }
    // More than the layer asks for: on CUDA, for mask and key padding together with a bias.
    void add_device_workspace(size_t bytes) {
        if (test_device() == HEED_CUDA) args.execution.workspace_bytes += bytes;
    }
    // y, or the test fails.
    std::vector<float> run() {
        EXPECT_EQ(status(), HEED_OK) << heed_last_error();
        return y();
    }
    std::vector<float> y() const {
        std::vector<float> values;
        for (int64_t i = 0; i < args.y.size; i++) {
            values.push_back(dtype_ == HEED_F32 ? static_cast<const float *>(y_.data())[i]
                                                : from_bits(dtype_, static_cast<const uint16_t *>(y_.data())[i]));
        }
        return values;
    }
    bool y_untouched() const {
        const auto *const bytes = static_cast<const unsigned char *>(y_.data());
        return std::all_of(bytes, bytes + y_.bytes(), [](unsigned char byte) { return byte == 0xff; });
    }
    // Token t of sequence b of x becomes that of another call.
    void take_token(int32_t b, int32_t t, const GuardedCall &from, int32_t from_b, int32_t from_t) {
        for (int32_t i = 0; i < SmallLayer::dim_in; i++) {
            x.set(static_cast<size_t>((b * args.q_len + t) * SmallLayer::dim_in + i),
                  from.x[static_cast<size_t>((from_b * from.args.q_len + from_t) * SmallLayer::dim_in + i)]);
        }
    }

private:
    const heed_dtype dtype_;
    const heed::Layer &layer_;

public:
    heed::LayerArgs args;
    Elements x;

private:
    const GuardedBuffer y_, workspace_;
};

// Row t of sequence b of a y [., q_len, dim_out].
inline std::vector<float> row_of(const std::vector<float> &y, int32_t q_len, int32_t b, int32_t t) {
    const auto first = y.begin() + (int64_t{b} * q_len + t) * SmallLayer::dim_out;
    return {first, first + SmallLayer::dim_out};
}

constexpr double f32_bound = 2e-6;  // another order of float sums: a few units of 2^-24

// Elements differ by at most `bound` times the largest one.
inline void expect_near(const std::vector<float> &got, const std::vector<float> &expected, double bound) {
    ASSERT_EQ(got.size(), expected.size());
    double largest = 0;
    for (const float x : expected) largest = std::max(largest, std::fabs(static_cast<double>(x)));
    for (size_t i = 0; i < got.size(); i++) ASSERT_NEAR(got[i], expected[i], bound * largest) << i;
}

}  // namespace heed_test
