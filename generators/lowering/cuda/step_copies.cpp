#include "generators/lowering/cuda/step_copies.h"

#include "generators/cuda/intrinsics.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

using Values = std::vector<std::pair<std::string, Expr>>;
Stmt with_values(const Values &values, Stmt result) {
    for (auto one = values.rbegin(); one != values.rend(); ++one) {
        result = LetStmt::make(one->first, one->second, result);
    }
    return result;
}
bool same(const Expr &x, const Expr &y) { return x.defined() == y.defined() && (!x.defined() || equal(x, y)); }

Expr bytes_before(const Expr &index, const SharedCopy &copy) {
    return cast<uint64_t>(index) * make_const(UInt(64), copy.type.bytes());
}

LinearTerms address_of(const SharedCopy &copy) { return LinearTerms(copy.address + bytes_before(copy.index, copy)); }

// Neighbours with the same conditions: of the branches around them, where their addresses are computed there;
// `whole`: by 16 bytes, or by elements where it does not hold.
struct Group {
    Expr condition, whole;
    Type type;                           // of elements
    std::vector<Stmt> chunks, elements;  // of elements: number `each`
    Values addresses;                    // of those in a branch
};
Stmt copies_of(const Group &group, const std::string &each) {
    Stmt copies = Block::make(group.chunks);
    if (group.whole.defined()) {
        const Stmt elements = SharedCopy::each_element(each, group.type, Block::make(group.elements));
        copies = IfThenElse::make(group.whole != 0, copies, elements);
    }
    copies = with_values(group.addresses, copies);
    return group.condition.defined() ? IfThenElse::make(group.condition, copies) : copies;
}

}  // namespace

StepCopies::StepCopies(const For *loop, const std::vector<TakenCopy> &copies, const std::map<std::string, int> &sizes,
                       Expr test, bool finds_bounds, bool in_branches)
    : loop(loop), sizes(sizes), test(std::move(test)), finds_bounds(finds_bounds), in_branches(in_branches) {
    for (const TakenCopy &taken : copies) add(taken);
}

Expr StepCopies::at_step(const Expr &e, const Expr &step) const { return simplify(substitute(loop->name, step, e)); }

Expr StepCopies::let_before(const std::string &name, const Expr &value) {
    Expr &known_as = known[value];
    if (!known_as.defined()) {
        before.emplace_back(unique_name(name), common_subexpression_elimination(value));
        known_as = Variable::make(value.type(), before.back().first);
    }
    return known_as;
}

Stmt StepCopies::with_values_before(const Stmt &loops) const { return with_values(before, loops); }

// A value that begin() computes once.
Expr StepCopies::let_at_step(const Expr &value) {
    Expr &known_as = known[value];
    if (!known_as.defined()) {
        at_each_step.emplace_back(unique_name("at_step"), value);
        known_as = Variable::make(value.type(), at_each_step.back().first);
    }
    return known_as;
}

void StepCopies::add(TakenCopy taken) {
    const SharedCopy &copy = taken.copy;
    Source source = {taken, {}, {}, {}, {}};
    if (!expr_uses_var(copy.address, loop->name)) {
        source.first = let_before("from", copy.address + bytes_before(at_step(copy.index, 0), copy));
    } else {
        const LinearTerms all = address_of(copy);
        source.base = all.that_use(loop->name, false).sum();
        source.of_step = all.that_use(loop->name, true).sum();
        if (!sources.empty() && sources.back().taken.copy.array == copy.array) {
            const Expr behind = (all - address_of(sources.back().taken.copy)).sum();
            const bool is_same = !expr_uses_var(behind, loop->name) && !expr_uses_var(behind, thread_variable) &&
                                 (!in_branches || same(taken.condition, sources.back().taken.condition));
            if (is_same) source.behind = let_before("rows", behind);
        }
        if (!source.behind.defined()) source.base = let_before("from", source.base);
        source.taken.copy.on = compared_before(copy.on);
    }
    sources.push_back(source);
}

// A comparison, of which what does not depend on the step is computed before the loop. Of wrapping words: LLVM
// would make a bound of each copy of a sum of integers that cannot overflow, and keep all bounds in registers.
Expr StepCopies::compared_before(const Expr &on) {
    const auto *flag = on.defined() ? on.as<Cast>() : nullptr;
    const auto *less = flag != nullptr ? flag->value.as<LT>() : nullptr;
    if (less == nullptr || less->a.type() != Int(32)) return on;
    const LinearTerms all = LinearTerms(less->b) - LinearTerms(less->a);
    const LinearTerms fixed = all.that_use(loop->name, false), moving = all.that_use(loop->name, true);
    const Expr found = cast<uint32_t>(fixed.without_constant().sum());
    Expr left = cast<int32_t>((finds_bounds ? found : let_before("left", found)) + cast<uint32_t>(moving.sum()));
    if (finds_bounds) left = let_at_step(left);
    return cast(on.type(), left > -static_cast<int>(fixed.constant()));
}

Expr StepCopies::address_at(const Source &source, const Expr &step, const Expr &before) const {
    const SharedCopy &copy = source.taken.copy;
    if (source.behind.defined()) return cuda::advance(before, source.behind);
    if (!source.first.defined()) return cuda::advance(source.base, at_step(source.of_step, step));
    const Expr moved = simplify(at_step(copy.index, step) - at_step(copy.index, 0));
    return source.first + bytes_before(moved, copy);
}

Stmt StepCopies::of(const Expr &step, Which which) const {
    return Block::make(begin(step, which), Evaluate::make(cuda::commit_copies()));
}

Stmt StepCopies::begin(const Expr &step, Which which) const {
    Values always;  // addresses
    std::vector<Group> groups;
    Expr last;
    const std::string each = unique_name("element");
    for (const Source &source : sources) {
        SharedCopy copy = source.taken.copy;
        if (which != Which::all && is_early(copy.array) != (which == Which::early)) continue;
        const Expr condition = source.taken.condition.defined() ? at_step(source.taken.condition, step) : Expr();
        const Expr asked = in_branches ? condition : Expr();
        const auto where_asked = [&](const Stmt &s) {
            return condition.defined() && !in_branches ? IfThenElse::make(condition, s) : s;
        };
        if (groups.empty() || !same(groups.back().whole, copy.whole) || !same(groups.back().condition, asked)) {
            groups.push_back({asked, copy.whole, copy.type, {}, {}, {}});
        }
        Group &group = groups.back();
        Values &addresses = asked.defined() ? group.addresses : always;
        addresses.emplace_back(unique_name("source"), address_at(source, step, last));
        last = Variable::make(UInt(64), addresses.back().first);
        const Expr from = last;
        const Expr bytes = copy.on.defined() ? select(at_step(copy.on, step) != 0, copy.bytes, 0) : Expr(copy.bytes);
        copy.to = at_step(copy.to, step);
        if (!has_one_buffer) copy.to = copy.to + simplify(step % 2) * sizes.at(copy.array);
        group.chunks.push_back(where_asked(Evaluate::make(copy.ahead(copy.to_address(), from, bytes))));
        if (!group.whole.defined()) continue;
        copy.on = bytes;
        copy.index = at_step(copy.index, step);
        group.elements.push_back(where_asked(copy.element(copy.to_address(), from, Variable::make(Int(32), each))));
    }
    std::vector<Stmt> all;
    for (const Group &group : groups) all.push_back(copies_of(group, each));
    Stmt result = with_values(always, all.empty() ? Evaluate::make(0) : Block::make(all));
    for (const auto &[name, value] : at_each_step) {
        const std::string here = unique_name(name);
        result = substitute(name, Variable::make(value.type(), here), result);
        result = LetStmt::make(here, at_step(value, step), result);
    }
    return test.defined() ? IfThenElse::make(at_step(test, step), result) : result;
}

}  // namespace heed
