#include "attention.h"

#include "parallel.h"
#include "stopwatch.h"

#include <algorithm>
#include <cmath>

namespace minilm {
namespace {

constexpr int64_t qkv_stride = 3 * hidden;  // from one token to the next

double valid_flop(const AttentionCall &call) {
    double pairs = 0;
    for (int32_t b = 0; b < call.batch; b++) pairs += static_cast<double>(call.kv_lens[b]) * call.kv_lens[b];
    return 4.0 * head_dim * num_heads * pairs;
}

// One query of one head against the sequence's kv_len keys. `probs` is scratch of kv_len floats.
void naive_row(const float *q, const float *k, const float *v, int32_t kv_len, float *probs, float *out) {
    const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
    float row_max = -INFINITY;
    for (int32_t j = 0; j < kv_len; j++) {
        float dot = 0;
        for (int32_t d = 0; d < head_dim; d++) dot += q[d] * k[j * qkv_stride + d];
        probs[j] = dot * scale;
        row_max = std::max(row_max, probs[j]);
    }
    float row_sum = 0;
    for (int32_t j = 0; j < kv_len; j++) {
        probs[j] = std::exp(probs[j] - row_max);
        row_sum += probs[j];
    }
    std::fill(out, out + head_dim, 0.0F);
    for (int32_t j = 0; j < kv_len; j++) {
        for (int32_t d = 0; d < head_dim; d++) out[d] += probs[j] / row_sum * v[j * qkv_stride + d];
    }
}

}  // namespace

void HeedAttention::prepare(int32_t batch, int32_t padded_len) {
    if (plans_.count({batch, padded_len}) != 0) return;
    const Stopwatch watch;
    heed::Problem problem;
    problem.batch = batch;
    problem.num_heads = num_heads;
    problem.num_kv_heads = num_heads;
    problem.head_dim = head_dim;
    problem.head_dim_v = head_dim;
    problem.max_q_len = padded_len;
    problem.max_kv_len = padded_len;
    problem.has_kv_lens = !ignore_key_lengths_;
    problem.max_threads = threads_;
    const heed_layout packed_qkv = {{padded_len * qkv_stride, qkv_stride, head_dim, 1}};
    problem.q_layout = problem.k_layout = problem.v_layout = packed_qkv;

    heed::Plan plan(problem);
    heed::Workspace workspace = plan.make_workspace();
    plans_.emplace(std::make_pair(batch, padded_len), Prepared{std::move(plan), std::move(workspace)});
    plan_seconds_ += watch.seconds();
}

void HeedAttention::run(const AttentionCall &call) {
    prepare(call.batch, call.padded_len);
    const Prepared &prepared = plans_.at({call.batch, call.padded_len});
    const size_t tokens = static_cast<size_t>(call.batch) * static_cast<size_t>(call.padded_len);
    const size_t size = tokens * static_cast<size_t>(qkv_stride);
    heed::Args args;
    args.q = heed::tensor(call.qkv, size);
    args.k = heed::tensor(call.qkv + hidden, size - hidden);
    args.v = heed::tensor(call.qkv + 2 * hidden, size - 2 * hidden);
    args.out = heed::tensor(call.out, tokens * hidden);
    args.kv_lens = call.kv_lens;
    prepared.workspace.attach(args);
    prepared.plan.execute(args);
}

std::string HeedAttention::kernel_name(int32_t batch, int32_t padded_len) const {
    return plans_.at({batch, padded_len}).plan.kernel_name();
}

void naive_attention(const AttentionCall &call, int threads) {
    parallel_for(threads, int64_t{call.batch} * num_heads, 1, [&](int64_t first, int64_t last) {
        std::vector<float> probs(static_cast<size_t>(call.padded_len));
        for (int64_t item = first; item < last; item++) {
            const int64_t b = item / num_heads, h = item % num_heads;
            const float *q = call.qkv + b * call.padded_len * qkv_stride + h * head_dim;
            float *out = call.out + b * call.padded_len * hidden + h * head_dim;
            for (int64_t i = 0; i < call.padded_len; i++) {
                naive_row(q + i * qkv_stride, q + hidden, q + 2 * hidden, call.kv_lens[b], probs.data(),
                          out + i * hidden);
            }
        }
    });
}

void MeasuredAttention::run(const AttentionCall &call) {
    heed_.prepare(call.batch, call.padded_len);  // a plan is made once per shape, outside the measured time
    const Stopwatch watch;
    heed_.run(call);
    totals_.heed_seconds += watch.seconds();
    totals_.flop += valid_flop(call);
    totals_.calls[heed_.kernel_name(call.batch, call.padded_len)]++;
    if (with_naive_) run_naive(call);
}

void MeasuredAttention::run_naive(const AttentionCall &call) {
    const size_t size = static_cast<size_t>(call.batch) * static_cast<size_t>(call.padded_len) * hidden;
    naive_out_.resize(size);
    AttentionCall naive_call = call;
    naive_call.out = naive_out_.data();
    const Stopwatch watch;
    naive_attention(naive_call, threads_);
    totals_.naive_seconds += watch.seconds();
    for (size_t i = 0; i < size; i++) {
        const double difference = std::abs(static_cast<double>(call.out[i]) - naive_out_[i]);
        totals_.largest_value = std::max(totals_.largest_value, std::abs(static_cast<double>(naive_out_[i])));
        totals_.largest_difference =
            std::isnan(difference) ? INFINITY : std::max(totals_.largest_difference, difference);
    }
}

}  // namespace minilm
