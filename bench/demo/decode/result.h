// What heed_decode measures, and what the paper did.
#pragma once

namespace heed_decode {

// The result of one number of kv heads; milliseconds of a step, minima over the steps.
struct Result {
    int num_kv_heads;
    double prompt_seconds, step_ms, attention_ms, cache_gigabytes;
};

// From Shazeer, arXiv 1911.02150, table 3: microseconds per token of incremental decoding on a TPUv2, with 8 heads of
// keys and values and with one.
constexpr double paper_multi_head_us = 46, paper_multi_query_us = 3.8;

}  // namespace heed_decode
