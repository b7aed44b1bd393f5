// What a run found, as a table and as JSON.
#pragma once

#include <string>
#include <vector>

#include "ceilings.h"
#include "machine.h"
#include "options.h"
#include "workload.h"

namespace heed_bench {

struct Result {
    Case problem_case;
    bool cold = false;  // every call on a copy of K and V that has left the caches
    std::string kernel;
    int32_t num_splits = 0;
    CheckResult check{};
    std::vector<double> seconds;  // of one call each; where a call is very short, means of several
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

heed_isa isa_of(const std::string &kernel);

// How a result stands to the ceiling that it could meet: FMA peak of the row's ISA for GFLOP/s; DRAM read bandwidth for
// decode's GB/s of K and V (L2 when warm and small enough for it).
struct Standing {
    std::string unit, ceiling_name;
    double milliseconds, median_milliseconds, rate, ceiling;
    double floor_milliseconds;  // FLOPs / peak + pairs / exp rate; bytes / bandwidth

    double share() const { return rate / ceiling; }
    double share_of_floor() const { return floor_milliseconds / milliseconds; }
};
Standing standing(const Result &result, const Ceilings &ceilings);

void print_ceilings(const Ceilings &ceilings);
void print_table(const Run &run);

// Throws std::runtime_error when the file cannot be written.
void write_json(const Run &run, const std::string &path);

}  // namespace heed_bench
