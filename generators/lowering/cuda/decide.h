#pragma once
// Conditions that an algorithm asks by a call, and of which a pass makes a statement for either answer.

#include <string>

#include "Halide.h"

namespace heed {

// `s` where the calls of `function` are so answered. Arrays that live outside are freed in neither statement.
inline Halide::Internal::Stmt decided(const Halide::Internal::Stmt &s, const std::string &function, bool holds) {
    struct Answer : Halide::Internal::IRMutator {
        const std::string &function;
        const Halide::Expr answer;
        Answer(const std::string &function, Halide::Expr answer) : function(function), answer(std::move(answer)) {}

        using IRMutator::visit;
        Halide::Expr visit(const Halide::Internal::Call *op) override {
            return op->name == function ? answer : IRMutator::visit(op);
        }
        Halide::Internal::Stmt visit(const Halide::Internal::Free *) override {
            return Halide::Internal::Evaluate::make(0);
        }
    };
    return simplify(
        Answer(function, holds ? Halide::Internal::const_true() : Halide::Internal::const_false()).mutate(s));
}

}  // namespace heed
