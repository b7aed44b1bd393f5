#include "generators/lowering/cuda/barriers.h"

#include <algorithm>

#include "generators/cuda/intrinsics.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const Call *effect(const Stmt &s) {
    const auto *evaluate = s.as<Evaluate>();
    return evaluate != nullptr ? evaluate->value.as<Call>() : nullptr;
}
bool is_halides_barrier(const Stmt &s) {
    const Call *call = effect(s);
    return call != nullptr && call->is_intrinsic(Call::gpu_thread_barrier);
}
bool is_own_barrier(const Stmt &s) {
    const Call *call = effect(s);
    return call != nullptr && call->name == "heed_barrier";
}

// Copies under way are not among them: they have a barrier of their own (PipelineCopies).
struct AccessedArrays : IRVisitor {
    std::set<std::string> read, written;

    using IRVisitor::visit;
    void visit(const Load *op) override {
        read.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const Store *op) override {
        written.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const Call *op) override {
        if (op->name == "heed_copy_async") return;
        if (is_shared_address(op)) read.insert(op->args[0].as<StringImm>()->value);
        IRVisitor::visit(op);
    }
};

bool has_barrier(const Stmt &s) {
    struct Find : IRVisitor {
        bool found = false;
        using IRVisitor::visit;
        void visit(const Evaluate *op) override { found = found || is_halides_barrier(op); }
    } find;
    s.accept(&find);
    return find.found;
}

}  // namespace

void DropBarriers::Accessed::add(const Accessed &other) {
    read.insert(other.read.begin(), other.read.end());
    written.insert(other.written.begin(), other.written.end());
}

bool DropBarriers::Accessed::conflicts_with(const Accessed &other) const {
    const auto meet = [](const std::set<std::string> &a, const std::set<std::string> &b) {
        return std::any_of(a.begin(), a.end(), [&](const std::string &name) { return b.count(name) != 0; });
    };
    return meet(written, other.read) || meet(written, other.written) || meet(read, other.written);
}

template <typename T>
DropBarriers::Accessed DropBarriers::accessed_by(const T &what) const {
    AccessedArrays all;
    what.accept(&all);
    Accessed result;
    for (const std::string &name : arrays) {
        if (all.read.count(name) != 0) result.read.insert(name);
        if (all.written.count(name) != 0) result.written.insert(name);
    }
    return result;
}

Stmt DropBarriers::separated(const Accessed &by, const Stmt &s) {
    const bool needed = waiting && since.conflicts_with(by);
    if (needed) {
        waiting = false;
        since = {};
    }
    since.add(by);
    return needed ? Block::make(Evaluate::make(cuda::barrier()), s) : s;
}

Stmt DropBarriers::mutate(const Stmt &s) {
    if (is_halides_barrier(s)) {
        waiting = true;
        return Evaluate::make(0);
    }
    if (is_own_barrier(s)) {
        waiting = false;
        since = {};
        return s;
    }
    const bool is_branch = s.as<IfThenElse>() != nullptr && !has_barrier(s);
    const bool is_leaf = s.as<Store>() != nullptr || s.as<Evaluate>() != nullptr || is_branch;
    return is_leaf && !arrays.empty() ? separated(accessed_by(s), s) : IRMutator::mutate(s);
}

// A branch that has barriers is taken by all threads of the block.
Stmt DropBarriers::visit(const IfThenElse *op) {
    const Accessed before = since;
    const bool waited = waiting;
    const Stmt then_case = mutate(op->then_case);
    const Accessed after = since;
    const bool then_waiting = waiting;
    since = before;
    waiting = waited;
    const Stmt else_case = op->else_case.defined() ? mutate(op->else_case) : Stmt();
    since.add(after);
    waiting = waiting || then_waiting;
    return IfThenElse::make(op->condition, then_case, else_case);
}

Stmt DropBarriers::visit(const Allocate *op) {
    if (op->memory_type == MemoryType::GPUShared) arrays.insert(op->name);
    return IRMutator::visit(op);
}

Stmt DropBarriers::visit(const LetStmt *op) {
    if (arrays.empty()) return IRMutator::visit(op);
    const Accessed by = accessed_by(op->value);
    const bool needed = waiting && since.conflicts_with(by);
    const Stmt nothing = separated(by, Evaluate::make(0));
    const Stmt let = LetStmt::make(op->name, op->value, mutate(op->body));
    return needed ? Block::make(nothing, let) : let;
}

// The first iteration follows what was before the loop, the others an iteration.
Stmt DropBarriers::visit(const For *op) {
    if (op->for_type != ForType::Serial || arrays.empty()) return IRMutator::visit(op);
    const Accessed before = since;
    const bool waited = waiting;
    const Stmt ends_clean = in_loop(op);
    if (since.read.empty() && since.written.empty()) return ends_clean;
    since = before;
    waiting = waited;
    since.add(accessed_by(op->body));
    return in_loop(op);
}

Stmt DropBarriers::in_loop(const For *op) {
    const Accessed all = accessed_by(op->body);
    Stmt body = mutate(op->body);
    if (waiting && all.conflicts_with(all)) {
        waiting = false;
        since = {};
        body = Block::make(body, Evaluate::make(cuda::barrier()));
    }
    return For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, body);
}

}  // namespace heed
