// One attention problem with its tensors, packed, on the stub kernels.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "heed/heed.h"
#include "runtime/reference/element.h"
#include "tests/api/stub_kernels.h"
#include "tests/support/plan.h"

inline heed_problem make_problem(int32_t batch, int32_t q_len, int32_t kv_len, int32_t num_heads = 4,
                                 int32_t num_kv_heads = 2, int32_t head_dim = 64, int32_t head_dim_v = 64) {
    heed_problem problem;
    heed_problem_init(&problem);
    problem.batch = batch;
    problem.max_q_len = q_len;
    problem.max_kv_len = kv_len;
    problem.num_heads = num_heads;
    problem.num_kv_heads = num_kv_heads;
    problem.head_dim = head_dim;
    problem.head_dim_v = head_dim_v;
    problem.max_threads = 2;
    return problem;
}

// Memory aligned as a workspace must be, between bytes that nothing may touch.
class AlignedBytes {
public:
    explicit AlignedBytes(size_t bytes) : memory_(bytes + 2 * alignment, '\xff'), bytes_(bytes) {
        const auto address = reinterpret_cast<uintptr_t>(memory_.data());
        begin_ = (address + alignment - 1) / alignment * alignment - address;
    }

    char *data() { return memory_.data() + begin_; }
    size_t size() const { return bytes_; }

    bool surroundings_intact() const {
        for (size_t i = 0; i < memory_.size(); i++) {
            if ((i < begin_ || i >= begin_ + bytes_) && memory_[i] != '\xff') return false;
        }
        return true;
    }

private:
    static constexpr size_t alignment = 128;
    std::vector<char> memory_;
    size_t bytes_, begin_;
};

constexpr float canary = -12345.0f;

// Elements of a packed tensor of this type: any bits that are finite numbers do.
inline heed_tensor as_tensor(std::vector<float> &data, heed_dtype dtype = HEED_F32) {
    return {data.empty() ? nullptr : data.data(), static_cast<int64_t>(data.size()), dtype};
}

inline heed_tensor as_tensor(std::vector<uint8_t> &data) {
    return {data.data(), static_cast<int64_t>(data.size()), HEED_U8};
}

// Tensors of a packed problem, filled with small integers that depend on `seed`; outputs hold canaries. Narrower types
// use a part of each vector.
struct Tensors {
    explicit Tensors(const heed_problem &p, uint32_t seed = 1)
        : q(elements(q_tokens(p), p.num_heads, p.head_dim)), k(elements(kv_tokens(p), p.num_kv_heads, p.head_dim)),
          v(elements(kv_tokens(p), p.num_kv_heads, p.head_dim_v)),
          k_scale(p.kv_dtype == HEED_I8 ? elements(kv_tokens(p), p.num_kv_heads, 1) : 0), v_scale(k_scale.size()),
          sink(p.has_sink ? elements(p.num_heads, 1, 1) : 0),
          alibi_slopes(p.has_alibi ? elements(p.num_heads, 1, 1) : 0),
          out(elements(q_tokens(p), p.num_heads, p.head_dim_v), canary),
          lse(elements(q_tokens(p), p.num_heads, 1), canary) {
        for (std::vector<float> *tensor : {&q, &k, &v, &k_scale, &v_scale, &sink, &alibi_slopes}) {
            for (float &x : *tensor) {
                seed = seed * 1664525u + 1013904223u;
                x = static_cast<float>(static_cast<int32_t>(seed >> 28) - 8) / 8;
            }
        }
    }

    static int64_t q_tokens(const heed_problem &p) {
        return p.q_storage == HEED_Q_VARLEN ? p.total_q : int64_t{p.batch} * p.max_q_len;
    }
    static int64_t kv_tokens(const heed_problem &p) {
        if (p.kv_storage == HEED_KV_VARLEN) return p.total_kv;
        if (p.kv_storage == HEED_KV_PAGED) return int64_t{p.num_pages} * p.page_size;
        return int64_t{p.batch} * p.max_kv_len;
    }
    static size_t elements(int64_t a, int64_t b, int64_t c) { return static_cast<size_t>(a * b * c); }

    bool outputs_untouched() const {
        const auto untouched = [](const std::vector<float> &tensor) {
            return std::all_of(tensor.begin(), tensor.end(), [](float x) { return x == canary; });
        };
        return untouched(out) && untouched(lse);
    }

    std::vector<float> q, k, v, k_scale, v_scale, sink, alibi_slopes, out, lse;
};

// A plan with tensors, arguments and a workspace, ready to run except for metadata, mask and bias.
struct Attempt {
    explicit Attempt(const heed_problem &p, uint32_t seed = 1)
        : problem(p), plan(make_plan(p)), tensors(p, seed), workspace(heed_plan_workspace_bytes(plan.get())) {
        heed_args_init(&args);
        args.q = as_tensor(tensors.q, p.dtype);
        args.k = as_tensor(tensors.k, p.kv_dtype);
        args.v = as_tensor(tensors.v, p.kv_dtype);
        args.k_scale = as_tensor(tensors.k_scale);
        args.v_scale = as_tensor(tensors.v_scale);
        args.sink = tensors.sink.data();
        args.alibi_slopes = tensors.alibi_slopes.data();
        args.out = as_tensor(tensors.out, p.dtype);
        if (p.want_lse) args.lse = as_tensor(tensors.lse);
        args.workspace = workspace.data();
        args.workspace_bytes = workspace.size();
    }

    heed_status execute() { return heed_execute(plan.get(), &args); }

    // Expects that the call fails with this sentence before it writes anything or calls a kernel.
    void expect_refused(heed_status status, const std::string &sentence) {
        const int64_t calls = stub::num_calls;
        EXPECT_EQ(execute(), status);
        EXPECT_THAT(heed_last_error(), ::testing::HasSubstr(sentence));
        EXPECT_EQ(stub::num_calls, calls);
        EXPECT_TRUE(tensors.outputs_untouched());
        EXPECT_TRUE(workspace.surroundings_intact());
    }

    heed_problem problem;
    PlanPtr plan;
    Tensors tensors;
    AlignedBytes workspace;
    heed_args args;
};

using heed_reference::same_bits;

// Restores the stub's behaviour after each test.
class ApiTest : public ::testing::Test {
protected:
    void TearDown() override {
        stub::behaviour = stub::Behaviour{};
        unsetenv("HEED_FORCE_KERNEL");
        unsetenv("HEED_VERBOSE");
    }
};
