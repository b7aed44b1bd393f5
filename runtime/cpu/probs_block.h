// Blocks of rows of heed_attention_probs.
#pragma once

#include <algorithm>

#include "runtime/cpu/probs.h"

namespace heed {

// What a block of rows needs, one part after the other.
struct ProbsScratch {
    int64_t products, scores, weights, queries, stats, panels, lines, tiles, sums, floats;

    explicit ProbsScratch(const HostProbs &call) {
        const int64_t width = call.plan.problem.max_kv_len, rows = call.rows();
        products = 0;
        scores = products + rows * width;
        weights = scores + rows * width;
        queries = weights + rows * width;
        stats = queries + rows * call.steps();
        panels = stats + 2 * rows;
        lines = panels + (call.packs_once() ? 0 : std::min(chunk_panels, call.num_panels()) * call.panel_floats());
        tiles = lines + (call.lines_are_out() ? 0 : rows * width);
        sums = tiles + (call.with_out ? call.value_rows() * call.value_steps() : 0);
        floats = sums + (call.sums_are_out() ? 0 : rows * call.plan.problem.head_dim_v);
    }
};

// Block `index` of the blocks of rows of all heads.
int run_probs_block(HostProbs *call, int64_t index, float *scratch, char (&message)[512]);

}  // namespace heed
