#include "generators/lowering/cuda/barriers.h"

#include <algorithm>
#include <limits>

#include "generators/common/serial_loop.h"
#include "generators/cuda/intrinsics.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

using AllBytes = DropBarriers::AllBytes;

const Call *effect(const Stmt &s) {
    const auto *evaluate = s.as<Evaluate>();
    return evaluate != nullptr ? evaluate->value.as<Call>() : nullptr;
}
bool is_barrier(const Stmt &s) {
    const Call *call = effect(s);
    return call != nullptr && call->is_intrinsic(Call::gpu_thread_barrier);
}
bool is_own_barrier(const Stmt &s) { return is_barrier(s) && equal(effect(s), cuda::barrier()); }
bool is_halides_barrier(const Stmt &s) { return is_barrier(s) && !is_own_barrier(s); }

bool has_barrier(const Stmt &s) {
    struct Find : IRVisitor {
        bool found = false;
        using IRVisitor::visit;
        void visit(const Evaluate *op) override { found = found || is_halides_barrier(op); }
    } find;
    s.accept(&find);
    return find.found;
}

Stmt after_barrier(const Stmt &s) { return Block::make(Evaluate::make(cuda::barrier()), s); }

void append(AllBytes &to, const AllBytes &from) { to.insert(to.end(), from.begin(), from.end()); }

bool conflict(const AllBytes &some, const AllBytes &others) {
    const auto meet = [](const DropBarriers::Bytes &a, const DropBarriers::Bytes &b) {
        return (a.is_store || b.is_store) && a.array == b.array && a.first <= b.last && b.first <= a.last;
    };
    return std::any_of(some.begin(), some.end(), [&](const DropBarriers::Bytes &a) {
        return std::any_of(others.begin(), others.end(), [&](const DropBarriers::Bytes &b) { return meet(a, b); });
    });
}

// Copies under way are not among them: they have a barrier of their own (PipelineCopies).
class SharedAccesses : public LetVisitor {
public:
    AllBytes found;

    SharedAccesses(const std::set<std::string> &arrays, Lets lets, const Scope<Interval> &outer)
        : LetVisitor(std::move(lets)), arrays(arrays) {
        loops.set_containing_scope(&outer);
    }

private:
    const std::set<std::string> &arrays;
    Scope<Interval> loops;

    // Elements of `bytes` bytes.
    void add(const std::string &array, const Expr &index, int bytes, bool is_store) {
        if (arrays.count(array) == 0) return;
        const Interval all = bounds_of_expr_in_scope(lets.in_full(index), loops);
        const auto first = all.has_lower_bound() ? as_const_int(simplify(all.min)) : std::nullopt,
                   last = all.has_upper_bound() ? as_const_int(simplify(all.max)) : std::nullopt;
        found.push_back({array, first ? *first * bytes : 0,
                         last ? (*last + 1) * bytes - 1 : std::numeric_limits<int64_t>::max(), is_store});
    }

    using LetVisitor::visit;
    void visit(const Load *op) override {
        add(op->name, op->index, op->type.bytes(), false);
        IRVisitor::visit(op);
    }
    void visit(const Store *op) override {
        add(op->name, op->index, op->value.type().bytes(), true);
        IRVisitor::visit(op);
    }
    void visit(const Call *op) override {
        if (op->name == "heed_copy_async" || op->name == "heed_copy_word_async") return;
        if (is_shared_address(op)) add(op->args[0].as<StringImm>()->value, 0, std::numeric_limits<int>::max(), false);
        IRVisitor::visit(op);
    }
    void visit(const For *op) override {
        const ScopedBinding<Interval> loop(loops, op->name, Interval(op->min, simplify(op->min + op->extent - 1)));
        IRVisitor::visit(op);
    }
};

}  // namespace

template <typename T>
AllBytes DropBarriers::accesses_of(const T &what) const {
    if (arrays.empty()) return {};
    SharedAccesses all(arrays, lets, loops);
    what.accept(&all);
    return all.found;
}

bool DropBarriers::needs_barrier(const AllBytes &accesses) {
    const bool needed = conflict(state.before, accesses);
    if (needed) state = {};
    append(state.since, accesses);
    return needed;
}

Stmt DropBarriers::mutate(const Stmt &s) {
    if (is_halides_barrier(s)) {
        append(state.before, state.since);
        state.since.clear();
        return Evaluate::make(0);
    }
    if (is_own_barrier(s)) {
        state = {};
        return s;
    }
    const bool is_whole = (s.as<IfThenElse>() != nullptr || s.as<For>() != nullptr) && !has_barrier(s);
    if (s.as<Store>() == nullptr && s.as<Evaluate>() == nullptr && !is_whole) return IRMutator::mutate(s);
    return needs_barrier(accesses_of(s)) ? after_barrier(s) : s;
}

Stmt DropBarriers::visit(const Allocate *op) {
    if (is_shared_array(op)) arrays.insert(op->name);
    return IRMutator::visit(op);
}

Stmt DropBarriers::visit(const LetStmt *op) {
    const bool needed = needs_barrier(accesses_of(op->value));
    lets.add(op->name, op->value);
    const Stmt let = LetStmt::make(op->name, op->value, mutate(op->body));
    return needed ? after_barrier(let) : let;
}

// All threads of the block take the same branch of those that have barriers.
Stmt DropBarriers::visit(const IfThenElse *op) {
    const State before = state;
    const Stmt then_case = mutate(op->then_case);
    const State of_then = state;
    state = before;
    const Stmt else_case = op->else_case.defined() ? mutate(op->else_case) : Stmt();
    append(state.before, of_then.before);
    append(state.since, of_then.since);
    return IfThenElse::make(op->condition, then_case, else_case);
}

// An iteration follows what was before the loop, or another iteration: if that does not end with a barrier, all of it
// may need one.
Stmt DropBarriers::visit(const For *op) {
    const ScopedBinding<Interval> loop(loops, op->name, Interval(op->min, simplify(op->min + op->extent - 1)));
    if (op->for_type != ForType::Serial) return IRMutator::visit(op);
    const State before = state;
    const Stmt result = in_loop(op);
    if (state.before.empty() && state.since.empty()) return result;
    const AllBytes all = accesses_of(op->body);
    state = before;
    append(state.before, all);
    append(state.since, all);
    return in_loop(op);
}

Stmt DropBarriers::in_loop(const For *op) {
    Stmt body = mutate(op->body);
    const AllBytes all = accesses_of(op->body);
    if (state.since.empty() && conflict(all, all)) {
        state = {};
        body = Block::make(body, Evaluate::make(cuda::barrier()));
    }
    return with_body(op, body);
}

}  // namespace heed
