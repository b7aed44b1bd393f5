#pragma once
#include "bench/demo/minilm/attention.h"
#include "bench/demo/minilm/model.h"
#include "bench/demo/minilm/text.h"

#include <string>
#include <vector>

namespace minilm {

// What one list of texts cost.
struct Run {
    std::string name;
    size_t count = 0, tokens = 0, longest = 0;
    double encode_seconds = 0;  // without the naive blocks
    AttentionTotals attention;
};

// The best `best` sentences for every query, by the dot product of their unit vectors.
void print_answers(const Assets &assets, const Matrix &sentences, const Matrix &queries, size_t best);

// The table: time, speed, share of the peak, compared with the naive blocks when these ran.
void print_runs(const std::vector<Run> &runs, double fma_peak_gflops, int threads, bool with_naive);

}  // namespace minilm
