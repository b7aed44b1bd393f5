// What the problem's softcap does, as a score function: its derivative is Heed's.
//   buffers: f32 the cap
#include <heed/user_score.h>

heed::ScoreMod heed::score_mod() {
    ScoreMod mod;
    mod.buffers = {ScoreElement::f32};
    mod.logit = [](const Halide::Expr &logit, const ScorePlace &, const ScoreBuffers &in) {
        Halide::Expr cap = in.f32(0, 0);
        return cap * Halide::tanh(logit / cap);
    };
    return mod;
}
