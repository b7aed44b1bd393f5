#include "generators/attention/fast_math.h"

#include "generators/attention/logits.h"
#include "generators/common/device_memory.h"
#include "generators/lowering/carried.h"

namespace heed {

using namespace Halide;

namespace {

class ReplaceMath : public Internal::IRMutator {
public:
    // block: what varies in device code, so that its functions are not called on the host; undefined: on a CPU.
    explicit ReplaceMath(const Expr &block) : block(block) {}

protected:
    using Internal::IRMutator::visit;

    Expr visit(const Internal::Call *op) override {
        const Expr call = Internal::IRMutator::visit(op);
        const auto *const mutated = call.as<Internal::Call>();
        if (mutated == nullptr || mutated->name != "tanh_f32") return call;
        const Expr &x = mutated->args[0];
        return block.defined() ? tanh_on_device(once(x, block)) : soft_capped(x, 1.f);
    }

    Expr visit(const Internal::Div *op) override {
        if (!block.defined() || op->type != Float(32) || Internal::is_const(op->b))
            return Internal::IRMutator::visit(op);
        return mutate(op->a) * reciprocal_on_device(once(mutate(op->b), block));
    }

private:
    const Expr block;
};

}  // namespace

ScoreMod with_fast_math(ScoreMod mod, bool on_cuda) {
    for (auto *function : {&mod.logit, &mod.logit_derivative}) {
        if (!*function) continue;
        *function = [given = *function, on_cuda](const Expr &x, const ScorePlace &place, const ScoreBuffers &buffers) {
            const std::string name = Internal::unique_name("logit");
            const Expr made = given(Internal::Variable::make(Float(32), name), place, buffers);
            return Internal::substitute(name, x, ReplaceMath(on_cuda ? place.b : Expr()).mutate(made));
        };
    }
    return mod;
}

}  // namespace heed
