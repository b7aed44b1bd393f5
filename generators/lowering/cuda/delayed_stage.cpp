#include "generators/lowering/cuda/delayed_stage.h"

#include "generators/common/bad_input.h"
#include "generators/lowering/cuda/accessed_arrays.h"
#include "generators/lowering/cuda/take_stages.h"
#include "generators/lowering/cuda/warpgroup_products.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// The nest of a product, after the stage, as one thing.
class BesideProduct : public IRMutator {
public:
    int found = 0;

    BesideProduct(const std::string &product, const Stmt &stage) : product(product), stage(stage) {}

private:
    const std::string &product;
    const Stmt &stage;
    bool in_product = false;

    using IRMutator::visit;
    Stmt visit(const ProducerConsumer *op) override {
        const ScopedValue<bool> outer(in_product, in_product || (op->is_producer && op->name == product));
        return IRMutator::visit(op);
    }
    Stmt visit(const For *op) override {
        if (!in_product) return op;
        found++;
        return ProducerConsumer::make(begun_together, true, Block::make(stage, op));
    }
};

}  // namespace

DelayedStage::DelayedStage(const For *loop, const Stmt &body, const StageDelay &delay)
    : loop(loop), product(delay.product) {
    TakeStages take([&](const ProducerConsumer *op) { return op->name == delay.stage; });
    others = take.mutate(body);
    if (take.taken.size() != 1) throw BadInput("a step does not compute " + delay.stage + " once");
    stage = substitute(take.lets, take.taken[0]);
    read = accesses_in(stage).read;
}

Stmt DelayedStage::first() const { return simplify(substitute(loop->name, 0, others)); }

Stmt DelayedStage::turn() const {
    const Expr step = Variable::make(Int(32), loop->name);
    Scope<Interval> bounds;
    bounds.push(loop->name, Interval(0, Interval::pos_inf()));
    BesideProduct both(product, stage);
    const Stmt result = both.mutate(simplify(substitute(loop->name, step + 1, others), true, bounds));
    if (both.found != 1) throw BadInput("a step does not compute the product " + product + " once");
    return result;
}

Stmt DelayedStage::last(const Expr &steps) const { return substitute(loop->name, steps - 1, stage); }

}  // namespace heed
