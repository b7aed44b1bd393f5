#pragma once
// Values of the integers that a kernel defines, in terms of its loops and parameters: passes compare indices by them.

#include <map>
#include <string>
#include <utility>

#include "Halide.h"

namespace heed {

// The number of a thread in its block, as Halide names the loop.
inline const char *const thread_variable = ".thread_id_x";

class Lets {
public:
    void add(const std::string &name, const Halide::Expr &value) {
        if (value.type().is_int_or_uint() && value.type().bits() <= 64) values[name] = in_full(value);
    }
    Halide::Expr in_full(const Halide::Expr &e) const {
        using namespace Halide::Internal;
        return simplify(substitute(values, substitute_in_all_lets(e)));
    }

private:
    std::map<std::string, Halide::Expr> values;
};

// Knows the lets around what it visits.
class LetVisitor : public Halide::Internal::IRVisitor {
public:
    explicit LetVisitor(Lets lets = {}) : lets(std::move(lets)) {}

protected:
    Lets lets;

    using IRVisitor::visit;
    void visit(const Halide::Internal::LetStmt *op) override {
        lets.add(op->name, op->value);
        IRVisitor::visit(op);
    }
    void visit(const Halide::Internal::Let *op) override {
        lets.add(op->name, op->value);
        IRVisitor::visit(op);
    }
};

}  // namespace heed
