#include "generators/lowering/drop_tests.h"

#include <algorithm>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

bool DropTests::is_one(const std::string &name) const {
    return std::any_of(stages.begin(), stages.end(),
                       [&](const std::string &stage) { return starts_with(name, stage); });
}

Stmt DropTests::visit(const Allocate *op) {
    if (!is_one(op->name)) return IRMutator::visit(op);
    return Allocate::make(op->name, op->type, op->memory_type, op->extents, const_true(), mutate(op->body));
}

Stmt DropTests::visit(const IfThenElse *op) {
    const auto *stage = op->then_case.as<ProducerConsumer>();
    const bool is_test =
        stage && stage->is_producer && is_one(stage->name) && op->condition.as<Variable>() && !op->else_case.defined();
    if (!is_test) return IRMutator::visit(op);
    found++;
    return mutate(op->then_case);
}

}  // namespace heed
