// A score function of this project's own: a query sees the keys at most three before it.
#include <heed/user_score.h>

heed::ScoreMod heed::score_mod() {
    ScoreMod mod;
    mod.visible = [](const ScorePlace &at, const ScoreBuffers &) { return at.j >= at.p - 3; };
    mod.block_visible = [](const ScoreBlock &block, const ScoreBuffers &) { return block.last_j >= block.first_p - 3; };
    return mod;
}
