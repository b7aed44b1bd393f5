// Blocks of rows of heed_attention_probs.
#pragma once

#include <algorithm>

#include "runtime/cpu/probs.h"
#include "runtime/scratch.h"

namespace heed {

// Rows of floats of a kernel of attention_probs: scores, weights, and weights of plain probabilities, for one form of
// the result at a time.
constexpr int64_t kernel_rows = 3;

// What a block of rows needs, one part after the other.
struct ProbsScratch {
    int64_t kernel, kernel_bytes, products, scores, queries, panels, lines, tiles, sums, floats;

    explicit ProbsScratch(const HostProbs &call) {
        const int64_t width = call.plan.problem.max_kv_len, rows = call.rows(), pitch = call.product_pitch();
        kernel = 0;
        kernel_bytes = ScratchSlice::bytes_for(round_up(width, probs_block) * kernel_rows * 4);
        products = kernel + kernel_bytes / 4;
        scores = products + rows * pitch;
        queries = scores + (call.has_odd_keys ? rows * width : 0);
        panels = queries + rows * call.steps();
        lines = panels + (call.packs_once() ? 0 : std::min(chunk_panels, call.num_panels()) * call.panel_floats());
        tiles = lines + (call.lines_are_out() ? 0 : rows * width);
        sums = tiles + (call.with_out ? call.value_rows() * call.value_steps() : 0);
        const int64_t of_sums = call.with_out && call.sums_in_tiles() ? call.value_rows() * call.sums_pitch()
                                : call.sums_are_out()                 ? 0
                                                                      : rows * call.plan.problem.head_dim_v;
        const int64_t end = sums + of_sums;
        floats = round_up(end, scratch_alignment / 4);
    }
};

// Block `index` of the blocks of rows of all heads.
int run_probs_block(HostProbs *call, int64_t index, float *scratch, char (&message)[512]);

}  // namespace heed
