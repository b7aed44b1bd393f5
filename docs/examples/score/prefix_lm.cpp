// Prefix LM: the tokens of a prefix see each other, all others what precedes them.
//   buffers: i32 prefix length of each sequence
#include <heed/user_score.h>

heed::ScoreMod heed::score_mod() {
    ScoreMod mod;
    mod.buffers = {ScoreElement::i32};
    mod.visible = [](const ScorePlace &at, const ScoreBuffers &in) { return at.j <= at.p || at.j < in.i32(0, at.b); };
    mod.block_visible = [](const ScoreBlock &block, const ScoreBuffers &in) {
        return block.first_j <= block.last_p || block.first_j < in.i32(0, block.b);
    };
    return mod;
}
