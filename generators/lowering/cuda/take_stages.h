#pragma once
// Takes stages of a step out of its body, to be computed elsewhere.

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "Halide.h"

namespace heed {

// `mutate` returns the body without those of its stages that are asked for.
class TakeStages : public Halide::Internal::IRMutator {
public:
    using Test = std::function<bool(const Halide::Internal::ProducerConsumer *stage)>;
    std::vector<Halide::Internal::Stmt> taken;
    std::map<std::string, Halide::Expr> lets;  // what stages may use, in full

    explicit TakeStages(Test is_asked_for) : is_asked_for(std::move(is_asked_for)) {}

private:
    const Test is_asked_for;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override {
        lets[op->name] = Halide::Internal::substitute(lets, op->value);
        return IRMutator::visit(op);
    }
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override {
        if (!op->is_producer || !is_asked_for(op)) return IRMutator::visit(op);
        taken.emplace_back(op);
        return Halide::Internal::Evaluate::make(0);
    }
};

}  // namespace heed
