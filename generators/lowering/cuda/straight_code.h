#pragma once
// Statements that a pass makes, in the order in which a thread runs them.

#include <functional>
#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class StraightCode {
public:
    // The value, computed here.
    Halide::Expr let(const std::string &name, const Halide::Expr &value) {
        steps.push_back({Halide::Internal::unique_name(name), value, {}});
        return Halide::Internal::Variable::make(value.type(), steps.back().name);
    }
    void run(const Halide::Internal::Stmt &s) { steps.push_back({"", {}, s}); }
    // A call for its effect.
    void run(const Halide::Expr &call) { run(Halide::Internal::Evaluate::make(call)); }
    // What `body` adds, where the condition holds; undefined, or always true: without a branch.
    void where(const Halide::Expr &condition, const std::function<void()> &body) {
        if (!condition.defined() || Halide::Internal::is_const_one(condition)) return body();
        std::vector<Step> outer;
        std::swap(steps, outer);
        body();
        const Halide::Internal::Stmt inner = finish();
        std::swap(steps, outer);
        run(Halide::Internal::IfThenElse::make(condition, inner));
    }
    Halide::Internal::Stmt finish() const {
        using namespace Halide::Internal;
        Stmt result = Evaluate::make(0);
        for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
            result = step->value.defined() ? LetStmt::make(step->name, step->value, result)
                                           : Block::make(step->leaf, result);
        }
        return result;
    }

private:
    struct Step {
        std::string name;
        Halide::Expr value;
        Halide::Internal::Stmt leaf;
    };
    std::vector<Step> steps;
};

}  // namespace heed
