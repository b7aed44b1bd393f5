#include "generators/lowering/cuda/replace_in_place.h"

#include "generators/common/bad_input.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// The name of the array of a kernel that begins with `name` and a number; itself where there is none.
std::string name_of_array(const Stmt &kernel, const std::string &name) {
    struct Find : IRVisitor {
        const std::string begin;
        std::string found;
        explicit Find(std::string begin) : begin(std::move(begin)) {}
        using IRVisitor::visit;
        void visit(const Allocate *op) override {
            const bool fits = op->name.compare(0, begin.size(), begin) == 0;
            if (fits && op->name.find_first_not_of("0123456789", begin.size()) == std::string::npos) found = op->name;
            IRVisitor::visit(op);
        }
    } find(name + ".");
    kernel.accept(&find);
    return find.found.empty() ? name : find.found;
}

// The elements of one array that are stored and of another that are read.
class Elements : public LetVisitor {
public:
    Elements(const Stmt &s, const std::string &made, const std::string &from) : made(made), from(from) {
        s.accept(this);
    }
    std::vector<Expr> stored, read;

private:
    const std::string &made, &from;

    using LetVisitor::visit;
    void visit(const Store *op) override {
        if (op->name == made) stored.push_back(lets.in_full(op->index));
        IRVisitor::visit(op);
    }
    void visit(const Load *op) override {
        if (op->name == from) read.push_back(lets.in_full(op->index));
        IRVisitor::visit(op);
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
    const Elements elements(op->body, made, from);
    for (const Expr &index : elements.read) {
        if (elements.stored.size() != 1 || !equal(simplify(index), simplify(elements.stored[0]))) {
            throw BadInput("more is read of " + from + " than the elements whose place " + made + " takes");
        }
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
