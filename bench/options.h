// The command line of heed_bench.
#pragma once

#include <string>
#include <vector>

#include "bench/workload.h"

namespace heed_bench {

struct Options {
    int threads = 2;
    int rounds = 5;
    double min_time = 0.2;  // seconds per case and round
    std::string filter;     // patterns of case names, with commas between; empty: all
    std::string suite;      // empty: all
    std::vector<heed_dtype> dtypes = {HEED_F32};
    bool int8_kv = false;
    std::string kernels = "best";
    std::string isa;  // empty: the plan's choice
    std::string json;
    Pages pages = Pages::standard;
    bool list = false;
    bool serve = false;
    std::vector<std::string> benchmark_flags;  // --benchmark_*, for Google Benchmark
};

// Ends the process where --help is asked for (status 0) and where the command line is wrong (2).
Options parse_options(int argc, char **argv);

// In each of the types.
std::vector<Case> selected_cases(const Options &options);

}  // namespace heed_bench
