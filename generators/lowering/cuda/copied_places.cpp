#include "generators/lowering/cuda/copied_places.h"

#include <algorithm>

#include "generators/common/bad_input.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// Arrays that are accessed: all, or those that are stored to.
class AccessedArrays : public IRVisitor {
public:
    std::set<std::string> read, stored;

private:
    using IRVisitor::visit;
    void visit(const Load *op) override {
        read.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const Store *op) override {
        stored.insert(op->name);
        IRVisitor::visit(op);
    }
};

template <typename T>
AccessedArrays accesses_in(const T &what) {
    AccessedArrays all;
    what.accept(&all);
    return all;
}

// The stages of some arrays, without which the body is left.
class TakeStages : public IRMutator {
public:
    std::vector<Stmt> taken;
    std::map<std::string, Expr> lets;

    explicit TakeStages(const std::set<std::string> &arrays) : arrays(arrays) {}

private:
    const std::set<std::string> &arrays;

    using IRMutator::visit;
    Stmt visit(const LetStmt *op) override {
        lets[op->name] = substitute(lets, op->value);
        return IRMutator::visit(op);
    }
    Stmt visit(const ProducerConsumer *op) override {
        const std::set<std::string> stored = op->is_producer ? accesses_in(op->body).stored : std::set<std::string>();
        const auto is_ours = [&](const std::string &array) { return arrays.count(array) != 0; };
        if (stored.empty() || !std::all_of(stored.begin(), stored.end(), is_ours)) return IRMutator::visit(op);
        taken.push_back(op->body);
        return Evaluate::make(0);
    }
};

// Accesses of some arrays in the buffer of a step.
class AtStep : public IRMutator {
public:
    AtStep(const std::vector<std::string> &arrays, const std::map<std::string, int> &sizes, Expr step)
        : arrays(arrays), sizes(sizes), step(std::move(step)) {}

private:
    const std::vector<std::string> &arrays;
    const std::map<std::string, int> &sizes;
    const Expr step;

    using IRMutator::visit;
    bool is_ours(const std::string &array) const {
        return std::find(arrays.begin(), arrays.end(), array) != arrays.end();
    }
    Expr moved(const std::string &array, const Expr &index) const {
        return simplify(index + step % 2 * sizes.at(array));
    }
    Expr visit(const Load *op) override {
        if (!is_ours(op->name)) return IRMutator::visit(op);
        return Load::make(op->type, op->name, moved(op->name, op->index), op->image, op->param, op->predicate, {});
    }
    Stmt visit(const Store *op) override {
        if (!is_ours(op->name)) return IRMutator::visit(op);
        return Store::make(op->name, mutate(op->value), moved(op->name, op->index), op->param, op->predicate, {});
    }
};

}  // namespace

CopiedPlaces::CopiedPlaces(const For *loop, Stmt *body, std::vector<SharedCopy *> copies,
                           const std::map<std::string, int> &sizes)
    : loop(loop), sizes(sizes) {
    const std::set<std::string> stored = accesses_in(*body).stored;
    std::set<std::string> places;
    for (const SharedCopy *copy : copies) {
        for (const std::string &array : accesses_in(copy->address).read) {
            if (stored.count(array) != 0) places.insert(array);
        }
    }
    found.assign(places.begin(), places.end());
    if (found.empty()) return;
    TakeStages take(places);
    *body = take.mutate(*body);
    stages = take.taken;
    lets = take.lets;
    const AccessedArrays left = accesses_in(*body);
    for (const std::string &array : found) {
        if (left.read.count(array) != 0 || left.stored.count(array) != 0) {
            throw BadInput(array + " says where copies are, and is used otherwise");
        }
    }
    const AtStep at_step(found, sizes, Variable::make(Int(32), loop->name));
    for (SharedCopy *copy : copies) copy->address = AtStep(at_step).mutate(copy->address);
}

Stmt CopiedPlaces::find(const Expr &step) const {
    if (stages.empty()) return Evaluate::make(0);
    const Stmt all = AtStep(found, sizes, Variable::make(Int(32), loop->name)).mutate(Block::make(stages));
    return IfThenElse::make(step < loop->extent, substitute(loop->name, step, substitute(lets, all)));
}

}  // namespace heed
