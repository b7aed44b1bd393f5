// A user's score function: its logits, what it hides, blocks of keys that it skips.
#include "generators/attention/logits.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

// Each row's part is computed once for all of its logits.
void ProgramBuilder::apply_score_mod(const Expr &start) {
    const ScoreMod &mod = cfg.score_mod;
    for (int r = 0; r < rows_of_thread(); r++) {
        const Expr i = code.let("query", min(query(r).position, q_len - 1));
        const Expr p = code.let("position", i + position_offset);
        change_row(r, [&](const Expr &x, int n, int e) {
            const ScorePlace place = {sequence, query(r).head, i, code.let("key", key(start, n, e)), p};
            Expr changed = x;
            if (mod.logit) {
                Expr own = add_bias(0.f, mod.logit(x * ln_2, place, in.score_buffers));
                changed = cfg.has_bias ? select(is_negative_infinity(x), minus_infinity, own) : own;
            }
            return mod.visible ? select(mod.visible(place, in.score_buffers), changed, minus_infinity) : changed;
        });
    }
}

// Uniform over the block: all rows, and all keys of block j that some row may see.
Expr ProgramBuilder::is_seen_block(const Expr &j) const {
    const Expr first_h = cfg.has_gqa ? kv_head * in.group_size : head;
    const Expr last_h = cfg.has_gqa ? first_h + in.group_size - 1 : head;
    const Expr first_i = query_of(first_row).position;
    const Expr last_i = query_of(min(first_row + tile.rows(), num_rows) - 1).position;
    const Expr first_j = key_start(j), last_j = min(first_j + tile.kv_block, kv_len) - 1;
    return cfg.score_mod.block_visible({sequence, first_h, last_h, first_i, last_i, first_j, last_j,
                                        first_i + position_offset, last_i + position_offset},
                                       in.score_buffers);
}

void ProgramBuilder::when_seen(const Expr &j, const std::function<void()> &step) {
    if (cfg.score_mod.block_visible) {
        code.when(is_seen_block(j), step);
    } else {
        step();
    }
}

}  // namespace heed::cuda
