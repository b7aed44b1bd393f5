#pragma once
#include <heed/heed.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace minilm {

constexpr int32_t num_heads = 12;
constexpr int32_t head_dim = 32;
constexpr int32_t hidden = num_heads * head_dim;

// One layer's attention over a padded batch. A token's row of qkv holds its q, k and v, each [num_heads, head_dim].
struct AttentionCall {
    int32_t batch, padded_len;
    const int32_t *kv_lens;  // [batch], valid tokens
    const float *qkv;        // [batch * padded_len, 3 * hidden]
    float *out;              // [batch * padded_len, hidden]
};

// Heed: q, k and v are strided views of qkv. One plan per padded shape, made once and kept.
class HeedAttention {
public:
    HeedAttention(int threads, bool ignore_key_lengths) : threads_(threads), ignore_key_lengths_(ignore_key_lengths) {}

    // Makes the plan if this shape is new; run() does it otherwise.
    void prepare(int32_t batch, int32_t padded_len);
    void run(const AttentionCall &call);
    // The row that runs this shape.
    std::string kernel_name(int32_t batch, int32_t padded_len) const;

    size_t num_plans() const { return plans_.size(); }
    double plan_seconds() const { return plan_seconds_; }

private:
    struct Prepared {
        heed::Plan plan;
        heed::Workspace workspace;
    };

    int threads_;
    bool ignore_key_lengths_;
    double plan_seconds_ = 0;
    std::map<std::pair<int32_t, int32_t>, Prepared> plans_;  // by (batch, padded_len)
};

// The textbook loops, one head of one sequence at a time: scores, softmax, weighted sum.
void naive_attention(const AttentionCall &call, int threads);

// Sums over the calls of one run of the encoder.
struct AttentionTotals {
    double heed_seconds = 0, naive_seconds = 0;
    double flop = 0;  // of valid queries and valid keys only: 4 * head_dim per pair and head
    double largest_difference = 0, largest_value = 0;  // of the naive output
    std::map<std::string, int> calls;                  // by kernel name
};

// Runs Heed and, when asked, the naive loops on the same input; measures both and compares every element.
class MeasuredAttention {
public:
    MeasuredAttention(int threads, bool ignore_key_lengths, bool with_naive)
        : heed_(threads, ignore_key_lengths), threads_(threads), with_naive_(with_naive) {}

    void run(const AttentionCall &call);
    AttentionTotals take_totals() { return std::exchange(totals_, {}); }
    const HeedAttention &heed() const { return heed_; }

private:
    void run_naive(const AttentionCall &call);

    HeedAttention heed_;
    int threads_;
    bool with_naive_;
    std::vector<float> naive_out_;
    AttentionTotals totals_;
};

}  // namespace minilm
