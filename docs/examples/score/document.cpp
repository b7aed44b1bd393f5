// Documents packed into one sequence: a token sees those of its own document. For a decoder give `causal` too.
//   buffers: i32 number of each token's document, growing along a sequence, [batch, len]; i32 len
#include <heed/user_score.h>

namespace {

Halide::Expr document(const heed::ScoreBuffers &in, const Halide::Expr &b, const Halide::Expr &token) {
    return in.i32(0, b * in.i32(1, 0) + token);
}

}  // namespace

heed::ScoreMod heed::score_mod() {
    ScoreMod mod;
    mod.buffers = {ScoreElement::i32, ScoreElement::i32};
    mod.visible = [](const ScorePlace &at, const ScoreBuffers &in) {
        return document(in, at.b, at.p) == document(in, at.b, at.j);
    };
    mod.block_visible = [](const ScoreBlock &block, const ScoreBuffers &in) {
        return document(in, block.b, block.first_j) <= document(in, block.b, block.last_p) &&
               document(in, block.b, block.last_j) >= document(in, block.b, block.first_p);
    };
    return mod;
}
