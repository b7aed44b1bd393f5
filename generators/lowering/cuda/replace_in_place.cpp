#include "generators/lowering/cuda/replace_in_place.h"

#include <algorithm>

#include "generators/common/array_names.h"
#include "generators/common/bad_input.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// Whether the stage that makes one array reads other elements of another than those that it stores next, or something
// after it reads any.
class ReadsOthers : public LetVisitor {
public:
    bool found = false;

    ReadsOthers(const Stmt &s, const std::string &made, const std::string &from)
        : made(made), from(from), stage(func_of_array(made)) {
        s.accept(this);
    }

private:
    const std::string &made, &from, stage;
    enum { before_stage, in_stage, after_stage } where = before_stage;
    std::vector<Expr> read, stored;

    static bool has(const std::vector<Expr> &all, const Expr &index) {
        return std::any_of(all.begin(), all.end(), [&](const Expr &one) { return equal(one, index); });
    }
    using LetVisitor::visit;
    void visit(const ProducerConsumer *op) override {
        const bool is_stage = op->is_producer && op->name == stage;
        if (is_stage) where = in_stage;
        IRVisitor::visit(op);
        if (!is_stage) return;
        where = after_stage;
        for (const Expr &index : read) found = found || !has(stored, index);
    }
    void visit(const Store *op) override {
        IRVisitor::visit(op);
        if (op->name == made) stored.push_back(simplify(lets.in_full(op->index)));
    }
    void visit(const Load *op) override {
        IRVisitor::visit(op);
        if (op->name != from || where == before_stage) return;
        const Expr index = simplify(lets.in_full(op->index));
        found = found || where == after_stage || has(stored, index);
        read.push_back(index);
    }
};

}  // namespace

Stmt ReplaceInPlace::visit(const For *op) {
    if (op->for_type == ForType::GPUBlock) {
        made = name_of_array(op, made);
        from = name_of_array(op, from);
    }
    return IRMutator::visit(op);
}

Stmt ReplaceInPlace::visit(const Allocate *op) {
    if (op->name != made) return IRMutator::visit(op);
    if (ReadsOthers(op->body, made, from).found) {
        throw BadInput("more is read of " + from + " than the elements whose place " + made + " takes");
    }
    found++;
    return mutate(op->body);
}

Stmt ReplaceInPlace::visit(const Free *op) { return op->name == made ? Evaluate::make(0) : Stmt(op); }

Stmt ReplaceInPlace::visit(const Store *op) {
    if (op->name != made) return IRMutator::visit(op);
    return Store::make(from, mutate(op->value), mutate(op->index), op->param, op->predicate, op->alignment);
}

Expr ReplaceInPlace::visit(const Load *op) {
    if (op->name != made) return IRMutator::visit(op);
    return Load::make(op->type, from, mutate(op->index), op->image, op->param, op->predicate, op->alignment);
}

}  // namespace heed
