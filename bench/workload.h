// A case made ready to run: plan, tensors, workspace; timed call by call and checked against fp64.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/arena.h"
#include "bench/cases.h"
#include "bench/sampled_queries.h"
#include "heed/heed.hpp"

namespace heed_bench {

class Workload {
public:
    // Throws heed::Error when no kernel serves it. A non-empty `kernel` is the kernel to use and no other.
    Workload(const Case &c, const std::string &kernel, int threads, const Arena &arena);

    const Case &problem_case() const { return case_; }
    std::string kernel() const { return plan_.kernel_name(); }
    int32_t num_splits() const { return plan_.num_splits(); }
    size_t workspace_bytes() const { return args_.workspace_bytes; }

    // Copies of K and V; all of them hold different numbers.
    int64_t num_copies() const { return placement_.num_copies; }

    // One call on a copy. Throws std::runtime_error with the library's sentence.
    void run(int64_t copy);

    // Runs copy 0 and compares sampled queries with fp64.
    CheckResult check();

private:
    void make_mask();
    void point_at(int64_t copy);

    Case case_;
    heed::Plan plan_;
    const Arena &arena_;
    Placement placement_;
    std::vector<uint8_t> mask_;
    std::vector<int32_t> page_table_, kv_lens_;
    std::vector<float> of_heads_;  // 2^(-8 (h + 1) / num_heads), as ALiBi has slopes
    heed::Workspace workspace_;
    heed::Args args_;
};

}  // namespace heed_bench
