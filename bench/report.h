// What a run found, as a table.
#pragma once

#include <string>
#include <vector>

#include "bench/ceilings.h"
#include "bench/machine.h"
#include "bench/options.h"
#include "bench/workload.h"

namespace heed_bench {

struct Result {
    Case problem_case;
    bool cold = false;  // every call on a copy of K and V that has left the caches
    std::string kernel;
    int32_t num_splits = 0;
    size_t workspace_bytes = 0;
    CheckResult check{};
    std::vector<double> seconds;    // of one call each; where a call is very short, means of several
    std::vector<double> dram_gbps;  // cold: plain reads of as many bytes, in turns with the samples
};

struct Skipped {
    std::string name, reason;
    bool failed;  // a kernel was there but did not run
};

struct Run {
    MachineFacts machine;
    Options options;
    Ceilings ceilings;
    double foreign_cpu = 0;  // share of the machine that other processes used during the timing
    std::vector<Result> results;
    std::vector<Skipped> skipped;
};

// "d4k_gqa cold"; decode cases have a warm and a cold form.
std::string display_name(const Result &result);

std::string types_name(const Case &c);  // "bf16", with keys of another type "bf16/i8"

// "", or of decode cases "warm" and "cold".
const char *temperature(const Result &result);

// How a result compares with the ceiling that it could meet: for GFLOP/s the peak of the kernel's arithmetic,
// unit_of(); for decode's GB/s of K and V the bandwidth of DRAM, or of the cache that holds them when warm. The share
// of cold calls is the median of their shares of the plain reads next to them, and the ceiling follows from it.
struct Standing {
    std::string unit, ceiling_name;
    double milliseconds, median_milliseconds, rate, ceiling;
    double floor_milliseconds;  // FLOPs / peak + pairs / exp rate; decode: or bytes / bandwidth where that is more

    double share() const { return rate / ceiling; }
    double share_of_floor() const { return floor_milliseconds / milliseconds; }
};
Standing standing(const Result &result, const Ceilings &ceilings);

void print_ceilings(const Ceilings &ceilings);
void print_table(const Run &run);

}  // namespace heed_bench
