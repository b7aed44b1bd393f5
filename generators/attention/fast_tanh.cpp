#include "generators/attention/fast_tanh.h"

#include "generators/attention/logits.h"

namespace heed {

using namespace Halide;

namespace {

class ReplaceTanh : public Internal::IRMutator {
public:
    explicit ReplaceTanh(bool on_cuda) : on_cuda(on_cuda) {}

protected:
    using Internal::IRMutator::visit;

    Expr visit(const Internal::Call *op) override {
        const Expr call = Internal::IRMutator::visit(op);
        const auto *const mutated = call.as<Internal::Call>();
        if (mutated == nullptr || mutated->name != "tanh_f32") return call;
        const Expr &x = mutated->args[0];
        return on_cuda ? tanh_on_device(x) : soft_capped(x, 1.f);
    }

private:
    const bool on_cuda;
};

}  // namespace

ScoreMod with_fast_tanh(ScoreMod mod, bool on_cuda) {
    for (auto *function : {&mod.logit, &mod.logit_derivative}) {
        if (!*function) continue;
        *function = [given = *function, on_cuda](const Expr &x, const ScorePlace &place, const ScoreBuffers &buffers) {
            return ReplaceTanh(on_cuda).mutate(given(x, place, buffers));
        };
    }
    return mod;
}

}  // namespace heed
