// Speculative decoding (Miao et al., arXiv 2305.09781): the queries are the nodes of a tree of draft tokens, whose keys
// are the last of the sequence. A node sees the context, its ancestors and itself.
//   buffers: i32 bit n of element i: node i sees node n, [batch, 32]; i32 length of each sequence's context
#include <heed/user_score.h>

heed::ScoreMod heed::score_mod() {
    ScoreMod mod;
    mod.buffers = {ScoreElement::i32, ScoreElement::i32};
    mod.visible = [](const ScorePlace &at, const ScoreBuffers &in) {
        Halide::Expr node = at.j - in.i32(1, at.b), seen = in.i32(0, at.b * 32 + at.i);
        return node < 0 || ((seen >> Halide::clamp(node, 0, 31)) & 1) != 0;
    };
    return mod;
}
