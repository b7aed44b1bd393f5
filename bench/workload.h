// A case made ready to run: plan, tensors, workspace; timed call by call and checked against fp64.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cases.h"
#include "sampled_rows.h"

namespace heed_bench {

enum class Pages { standard, small, huge };  // standard: what the system gives without being asked

// The memory of all cases: N(0,1) numbers that each cuts its inputs from, and one output that they share.
class Arena {
public:
    Arena(int64_t input_elements, int64_t out_elements, Pages pages);

    const float *input(int64_t offset) const { return memory_.get() + offset; }
    float *out() const { return memory_.get() + input_elements_; }

private:
    struct Unmap {
        size_t bytes;
        void operator()(float *memory) const;
    };
    int64_t input_elements_;
    std::unique_ptr<float, Unmap> memory_;
};

// Input elements that a case needs. Decode cases rotate over copies of K and V so large in sum that each call finds its
// copy out of every cache: 1 GiB and 8 L3 sizes at least.
int64_t input_elements(const Case &c);

class Workload {
public:
    // NULL when no kernel serves it, with the reason. A non-empty `row` is the kernel to use and no other.
    static std::unique_ptr<Workload> create(const Case &c, const std::string &row, int threads, const Arena &arena,
                                            std::string &reason);

    const Case &problem_case() const { return case_; }
    std::string kernel() const;
    int32_t num_splits() const;

    // Copies of K and V; all of them hold different numbers.
    int64_t num_copies() const { return num_copies_; }

    // One call on a copy. Throws std::runtime_error with the library's sentence.
    void run(int64_t copy);

    // Runs copy 0 and compares sampled rows with fp64.
    CheckResult check();

private:
    struct PlanDeleter {
        void operator()(heed_plan *plan) const { heed_plan_destroy(plan); }
    };
    struct Free {
        void operator()(void *memory) const;
    };

    Workload(const Case &c, heed_plan *plan, const Arena &arena);
    void make_mask();
    const float *k_of(int64_t copy) const;
    const float *v_of(int64_t copy) const;

    Case case_;
    std::unique_ptr<heed_plan, PlanDeleter> plan_;
    const Arena &arena_;
    int64_t num_copies_;
    std::vector<uint8_t> mask_;
    std::unique_ptr<void, Free> workspace_;
    heed_args args_;
};

}  // namespace heed_bench
