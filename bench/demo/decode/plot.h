// A plot of milliseconds per token over kv heads, as SVG.
#pragma once

#include <string>
#include <vector>

namespace heed_decode {

// Of one number of kv heads; milliseconds of a step, minima over the steps.
struct Result {
    int num_kv_heads;
    double prompt_seconds, step_ms, attention_ms, cache_gigabytes;
};

// bandwidth: GB/s at which the cache could be read at most.
void write_plot(const std::string &path, const std::vector<Result> &results, double bandwidth);

}  // namespace heed_decode
