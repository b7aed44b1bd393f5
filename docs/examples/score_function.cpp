// Documents that are packed into one sequence: a token sees the tokens of its own document.
#include <heed/user_score.h>

heed::ScoreMod heed::score_mod() {
    ScoreMod mod;
    mod.buffers = {ScoreElement::i32};  // heed_args.score_buffers[0]: the document of each token, growing
    mod.visible = [](const ScorePlace &at, const ScoreBuffers &in) { return in.i32(0, at.p) == in.i32(0, at.j); };
    mod.block_visible = [](const ScoreBlock &block, const ScoreBuffers &in) {  // false: the block is skipped
        return in.i32(0, block.first_j) <= in.i32(0, block.last_p) &&
               in.i32(0, block.last_j) >= in.i32(0, block.first_p);
    };
    return mod;
}
