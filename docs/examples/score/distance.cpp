// A bias that saturates with the distance: strength[h] * tanh((j - p) / reach[h]).
//   buffers: f32 strength of each head; f32 reach of each head
#include <heed/user_score.h>

heed::ScoreMod heed::score_mod() {
    ScoreMod mod;
    mod.buffers = {ScoreElement::f32, ScoreElement::f32};
    mod.logit = [](const Halide::Expr &logit, const ScorePlace &at, const ScoreBuffers &in) {
        Halide::Expr distance = Halide::cast<float>(at.j - at.p);
        return logit + in.f32(0, at.h) * Halide::tanh(distance / in.f32(1, at.h));
    };
    return mod;
}
