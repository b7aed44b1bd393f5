#include "bench/entry.h"

#include <algorithm>

#include "bench/machine.h"

namespace heed_bench {

namespace {

// Enough calls to make 20 us, compared with which reading the clock is nothing.
int64_t calls_of_sample(Workload &workload) {
    double seconds = 1;
    for (int n = 0; n < 3 && (n == 0 || seconds < 0.1); n++) {
        const double start = wall_seconds();
        workload.run(0);
        seconds = std::min(seconds, wall_seconds() - start);
    }
    return std::clamp<int64_t>(static_cast<int64_t>(20e-6 / seconds), 1, 64);
}

}  // namespace

double Entry::sample() {
    const double start = wall_seconds();
    for (int64_t n = 0; n < calls_per_sample; n++) {
        workload->run(next_copy);
        next_copy = result.cold ? (next_copy + 1) % workload->num_copies() : 0;
    }
    const double seconds = wall_seconds() - start;
    result.seconds.push_back(seconds / static_cast<double>(calls_per_sample));
    if (result.cold) {
        result.dram_gbps.push_back(reader->read_gbps(kv_bytes(result.problem_case)));
    }
    return seconds;
}

Entry make_entry(Workload &workload, bool cold, const CheckResult &check, DramReader &reader) {
    const Result result{workload.problem_case(),
                        cold,
                        workload.kernel(),
                        workload.num_splits(),
                        workload.workspace_bytes(),
                        check,
                        {},
                        {}};
    return {&workload, result, calls_of_sample(workload), &reader};
}

}  // namespace heed_bench
