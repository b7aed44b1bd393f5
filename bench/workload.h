// A case made ready to run: plan, tensors, workspace; timed call by call and checked against fp64.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/arena.h"
#include "bench/cases.h"
#include "bench/sampled_queries.h"

namespace heed_bench {

class Workload {
public:
    // NULL when no kernel serves it, with the reason. A non-empty `kernel` is the kernel to use and no other.
    static std::unique_ptr<Workload> create(const Case &c, const std::string &kernel, int threads, const Arena &arena,
                                            std::string &reason);

    const Case &problem_case() const { return case_; }
    std::string kernel() const;
    int32_t num_splits() const;
    size_t workspace_bytes() const { return args_.workspace_bytes; }

    // Copies of K and V; all of them hold different numbers.
    int64_t num_copies() const { return placement_.num_copies; }

    // One call on a copy. Throws std::runtime_error with the library's sentence.
    void run(int64_t copy);

    // Runs copy 0 and compares sampled queries with fp64.
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
    void point_at(int64_t copy);

    Case case_;
    std::unique_ptr<heed_plan, PlanDeleter> plan_;
    const Arena &arena_;
    Placement placement_;
    std::vector<uint8_t> mask_;
    std::vector<float> of_heads_;  // 2^(-8 (h + 1) / num_heads), as ALiBi has slopes
    std::unique_ptr<void, Free> workspace_;
    heed_args args_;
};

}  // namespace heed_bench
