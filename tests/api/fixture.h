// One attention problem with its tensors, packed, on the stub rows.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "heed/heed.h"
#include "stub_kernels.h"

struct PlanDeleter {
    void operator()(heed_plan *plan) const { heed_plan_destroy(plan); }
};
using PlanPtr = std::unique_ptr<heed_plan, PlanDeleter>;

// Creates a plan, expecting `expected`; NULL when it fails.
inline PlanPtr make_plan(const heed_problem &problem, heed_status expected = HEED_OK) {
    heed_plan *plan = nullptr;
    EXPECT_EQ(heed_plan_create(&problem, &plan), expected) << heed_last_error();
    EXPECT_EQ(plan != nullptr, expected == HEED_OK);
    return PlanPtr(plan);
}

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

// Memory aligned as a workspace must be.
class AlignedBytes {
public:
    explicit AlignedBytes(size_t bytes) : memory_(bytes + 128, '\xff'), bytes_(bytes) {}

    char *data() {
        const auto address = reinterpret_cast<uintptr_t>(memory_.data());
        return memory_.data() + ((address + 127) / 128 * 128 - address);
    }
    size_t size() const { return bytes_; }

private:
    std::vector<char> memory_;
    size_t bytes_;
};

constexpr float canary = -12345.0f;

// Tensors of a packed problem, filled with small integers that depend on `seed`; outputs hold canaries.
struct Tensors {
    explicit Tensors(const heed_problem &p, uint32_t seed = 1)
        : q(elements(p.batch, p.max_q_len, p.num_heads, p.head_dim)),
          k(elements(p.batch, p.max_kv_len, p.num_kv_heads, p.head_dim)),
          v(elements(p.batch, p.max_kv_len, p.num_kv_heads, p.head_dim_v)),
          out(elements(p.batch, p.max_q_len, p.num_heads, p.head_dim_v), canary),
          lse(elements(p.batch, p.num_heads, p.max_q_len, 1), canary) {
        for (std::vector<float> *tensor : {&q, &k, &v}) {
            for (float &x : *tensor) {
                seed = seed * 1664525u + 1013904223u;
                x = static_cast<float>(static_cast<int32_t>(seed >> 28) - 8) / 8;
            }
        }
    }

    static size_t elements(int64_t a, int64_t b, int64_t c, int64_t d) { return static_cast<size_t>(a * b * c * d); }

    bool outputs_untouched() const {
        for (const std::vector<float> *tensor : {&out, &lse}) {
            for (float x : *tensor) {
                if (x != canary) return false;
            }
        }
        return true;
    }

    std::vector<float> q, k, v, out, lse;
};

inline heed_tensor as_tensor(std::vector<float> &data) {
    return {data.empty() ? nullptr : data.data(), static_cast<int64_t>(data.size()), HEED_F32};
}

inline heed_tensor as_tensor(std::vector<uint8_t> &data) {
    return {data.data(), static_cast<int64_t>(data.size()), HEED_U8};
}

// A plan with tensors, arguments and a workspace, ready to run.
struct Attempt {
    explicit Attempt(const heed_problem &p, uint32_t seed = 1)
        : problem(p), plan(make_plan(p)), tensors(p, seed), workspace(heed_plan_workspace_bytes(plan.get())) {
        heed_args_init(&args);
        args.q = as_tensor(tensors.q);
        args.k = as_tensor(tensors.k);
        args.v = as_tensor(tensors.v);
        args.out = as_tensor(tensors.out);
        args.lse = as_tensor(tensors.lse);
        args.workspace = workspace.data();
        args.workspace_bytes = workspace.size();
    }

    heed_status execute() { return heed_execute(plan.get(), &args); }

    heed_problem problem;
    PlanPtr plan;
    Tensors tensors;
    AlignedBytes workspace;
    heed_args args;
};

inline bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Restores the stub's behaviour after each test.
class ApiTest : public ::testing::Test {
protected:
    void TearDown() override {
        stub::behaviour = stub::Behaviour{};
        unsetenv("HEED_FORCE_KERNEL");
        unsetenv("HEED_VERBOSE");
    }
};
