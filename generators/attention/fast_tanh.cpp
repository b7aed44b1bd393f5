#include "generators/attention/fast_tanh.h"

#include "generators/attention/logits.h"

namespace heed {

using namespace Halide;

namespace {

class ReplaceTanh : public Internal::IRMutator {
protected:
    using Internal::IRMutator::visit;

    Expr visit(const Internal::Call *op) override {
        const Expr call = Internal::IRMutator::visit(op);
        const auto *const mutated = call.as<Internal::Call>();
        if (mutated == nullptr || mutated->name != "tanh_f32") return call;
        return soft_capped(mutated->args[0], 1.f);
    }
};

}  // namespace

ScoreMod with_fast_tanh(ScoreMod mod) {
    for (auto *function : {&mod.logit, &mod.logit_derivative}) {
        if (!*function) continue;
        *function = [given = *function](const Expr &x, const ScorePlace &place, const ScoreBuffers &buffers) {
            return ReplaceTanh().mutate(given(x, place, buffers));
        };
    }
    return mod;
}

}  // namespace heed
