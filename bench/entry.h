// One line of the table in the making: a case on a kernel, warm or cold, and its samples.
#pragma once

#include <memory>

#include "bench/report.h"
#include "bench/workload.h"

namespace heed_bench {

struct Entry {
    Workload *workload;
    Result result;
    int64_t calls_per_sample;
    DramReader *reader;  // of cold entries
    int64_t next_copy = 0;

    // Seconds of calls_per_sample calls. Throws std::runtime_error when one fails.
    double sample();
};

// Times a few calls, to know how many make a sample.
Entry make_entry(Workload &workload, bool cold, const CheckResult &check, DramReader &reader);

}  // namespace heed_bench
