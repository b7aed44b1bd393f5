#include "generators/lowering/step_stages.h"

#include <algorithm>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

class DropFrees : public IRMutator {
    using IRMutator::visit;
    Stmt visit(const Free *) override { return Evaluate::make(0); }
};

class StoresTo : public IRVisitor {
public:
    std::vector<const Store *> stores;

    explicit StoresTo(const std::string &array) : array(array) {}

private:
    using IRVisitor::visit;
    const std::string &array;

    void visit(const Store *op) override {
        if (op->name == array) stores.push_back(op);
        IRVisitor::visit(op);
    }
};

}  // namespace

StepStages::StepStages(const Stmt &loop_body) : body(DropFrees().mutate(loop_body)) { add(body); }

const Stmt &StepStages::of(const std::string &name) const {
    const auto is_it = [&](const auto &stage) { return stage.first == name; };
    const auto found = std::find_if(in_order.begin(), in_order.end(), is_it);
    if (found == in_order.end()) throw CompileError("no stage " + name + " in a loop to weave");
    return found->second;
}

const Allocate &StepStages::array(const std::string &name) const {
    const auto is_it = [&](const Allocate *array) { return array->name == name; };
    const auto found = std::find_if(arrays.begin(), arrays.end(), is_it);
    if (found == arrays.end()) throw CompileError("no array " + name + " in a loop to weave");
    return **found;
}

void StepStages::add(const Stmt &stmt) {
    if (const auto *block = stmt.as<Block>()) {
        add(block->first);
        add(block->rest);
    } else if (const auto *array = stmt.as<Allocate>()) {
        if (array->memory_type != MemoryType::Register) throw CompileError(array->name + " is not in registers");
        arrays.push_back(array);
        add(array->body);
    } else if (const auto *let = stmt.as<LetStmt>()) {
        add(substitute(let->name, let->value, let->body));
    } else if (const auto *stage = stmt.as<ProducerConsumer>()) {
        if (!stage->is_producer) return add(stage->body);
        in_order.emplace_back(stage->name, stmt);
    } else {
        in_order.emplace_back("", stmt);
    }
}

KeyLoop::KeyLoop(const Stmt &of) : stage(of) { add(stage); }

void KeyLoop::add(const Stmt &stmt) {
    if (loop) return;
    if (const auto *inner = stmt.as<ProducerConsumer>()) return add(inner->body);
    if (const auto *block = stmt.as<Block>()) {
        add(block->first);
        return add(block->rest);
    }
    loop = stmt.as<For>();
    if (!loop) before.push_back(stmt);
}

int constant(const Expr &value) {
    const auto found = as_const_int(simplify(value));
    if (!found) throw CompileError("a loop to weave has no constant length");
    return static_cast<int>(*found);
}

Stmt part_of(const For *loop, const Expr &first, const Expr &count) {
    const std::string name = unique_name(loop->name);
    const Stmt body = substitute(loop->name, loop->min + first + Variable::make(Int(32), name), loop->body);
    return For::make(name, 0, count, loop->for_type, loop->partition_policy, loop->device_api, body);
}

Expr ReadAs::visit(const Load *op) {
    if (op->name != array) return IRMutator::visit(op);
    return op->type.is_scalar() ? value : Broadcast::make(value, op->type.lanes());
}

Expr ReplaceArray::placed(const Expr &index) {
    const auto *ramp = index.as<Ramp>();
    return ramp ? Ramp::make(place(mutate(ramp->base)), ramp->stride, ramp->lanes) : place(mutate(index));
}

Expr ReplaceArray::visit(const Load *op) {
    if (op->name != array) return IRMutator::visit(op);
    return Load::make(op->type, by, placed(op->index), op->image, op->param, op->predicate, ModulusRemainder());
}

Stmt ReplaceArray::visit(const Store *op) {
    if (op->name != array) return IRMutator::visit(op);
    return Store::make(by, mutate(op->value), placed(op->index), op->param, op->predicate, ModulusRemainder());
}

InlineStage::InlineStage(std::string array, const Stmt &of) : array(std::move(array)), stage(without_lets(of)) {
    key = KeyLoop(stage).loop->name;
    stores = stores_to(this->array, stage);
    for (const Store *store : stores) elements_of_key += store->value.type().lanes();
}

Expr InlineStage::visit(const Load *op) {
    if (op->name != array) return IRMutator::visit(op);
    const auto base_of = [](const Expr &index) { return index.as<Ramp>()->base; };
    // Numbers in 64 bits fall apart where they are those of one iteration.
    for (const Store *store : stores) {
        const Expr first = simplify(substitute(key, 0, base_of(store->index)));
        const Expr number = simplify((base_of(op->index) - first) / elements_of_key);
        const Expr there = first + number * elements_of_key;
        if (!can_prove(there == base_of(op->index))) continue;
        return substitute(key, simplify(cast<int32_t>(number)), store->value);
    }
    throw CompileError("a load of " + array + " is no vector that is stored");
}

Stmt without_lets(const Stmt &stmt) {
    class Resolve : public IRMutator {
        using IRMutator::visit;
        Stmt visit(const LetStmt *op) override { return mutate(substitute(op->name, op->value, op->body)); }
    };
    return Resolve().mutate(stmt);
}

std::vector<const Store *> stores_to(const std::string &array, const Stmt &stage) {
    StoresTo found(array);
    stage.accept(&found);
    return found.stores;
}

}  // namespace heed
