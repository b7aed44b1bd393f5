#include "generators/lowering/cuda/copied_places.h"

#include <algorithm>

#include "generators/common/bad_input.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// Arrays that are read, and that are stored to.
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

    explicit TakeStages(const std::map<std::string, int> &arrays) : arrays(arrays) {}

private:
    const std::map<std::string, int> &arrays;

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

}  // namespace

CopiedPlaces::CopiedPlaces(const For *loop, Stmt *body, const std::vector<SharedCopy *> &copies,
                           const std::map<std::string, int> &elements, int buffers)
    : loop(loop), buffers(buffers) {
    const std::set<std::string> stored = accesses_in(*body).stored;
    for (const SharedCopy *copy : copies) {
        for (const std::string &array : accesses_in(copy->address).read) {
            if (stored.count(array) != 0) sizes[array] = elements.at(array);
        }
    }
    if (sizes.empty()) return;
    TakeStages take(sizes);
    *body = take.mutate(*body);
    stages = take.taken;
    lets = take.lets;
    const AccessedArrays left = accesses_in(*body);
    for (const auto &[array, size] : sizes) {
        if (left.read.count(array) != 0 || left.stored.count(array) != 0) {
            throw BadInput(array + " says where copies are, and is used otherwise");
        }
    }
    for (SharedCopy *copy : copies) copy->address = in_buffer().mutate(copy->address);
}

InBuffer CopiedPlaces::in_buffer() const {
    return {sizes, Variable::make(Int(32), loop->name) % buffers, InBuffer::Stores::move};
}

Stmt CopiedPlaces::find(const Expr &step, const Expr &steps) const {
    if (stages.empty()) return Evaluate::make(0);
    const Stmt all = in_buffer().mutate(Block::make(stages));
    return IfThenElse::make(step < steps, substitute(loop->name, step, substitute(lets, all)));
}

}  // namespace heed
