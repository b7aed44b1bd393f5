#include "generators/lowering/cuda/pipeline_copies.h"

#include <optional>

#include "generators/common/bad_input.h"
#include "generators/cuda/intrinsics.h"
#include "generators/lowering/cuda/copied_places.h"
#include "generators/lowering/cuda/in_buffer.h"
#include "generators/lowering/cuda/linear_terms.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// The copies of a loop's body, in full, and the body without them.
class TakeCopies : public IRMutator {
public:
    struct Taken {
        SharedCopy copy;
        Expr condition;  // of the branches around it; undefined for none
    };
    std::vector<Taken> taken;

    explicit TakeCopies(std::function<bool(const std::string &)> is_shared) : is_shared(std::move(is_shared)) {}

private:
    const std::function<bool(const std::string &)> is_shared;
    Lets lets;
    Expr condition;

    using IRMutator::visit;
    Stmt visit(const LetStmt *op) override {
        lets.add(op->name, op->value);
        return IRMutator::visit(op);
    }
    Stmt visit(const For *op) override { return op; }  // has steps of its own
    Stmt visit(const IfThenElse *op) override {
        const Expr outer = condition, mine = lets.in_full(op->condition);
        condition = outer.defined() ? outer && mine : mine;
        const Stmt then_case = mutate(op->then_case);
        condition = outer.defined() ? outer && !mine : !mine;
        const Stmt else_case = op->else_case.defined() ? mutate(op->else_case) : Stmt();
        condition = outer;
        return IfThenElse::make(op->condition, then_case, else_case);
    }
    Stmt visit(const Store *op) override {
        auto copy = is_shared(op->name) ? SharedCopy::of_any(op) : std::nullopt;
        if (!copy) return op;
        if (copy->flipped.defined()) throw BadInput("bits are flipped of what is copied ahead to " + op->name);
        for (Expr *e : {&copy->to, &copy->address, &copy->index, &copy->on, &copy->whole, &copy->end}) {
            if (e->defined()) *e = lets.in_full(*e);
        }
        if (copy->bytes == 16 && !begins_chunk(copy->to, copy->type)) {
            throw BadInput("copies to " + op->name + " do not begin at multiples of 16 bytes");
        }
        taken.push_back({*copy, condition});
        return Evaluate::make(0);
    }
};

int accesses_of(const std::string &array, const Stmt &s) {
    struct Count : IRVisitor {
        const std::string &array;
        int count = 0;
        explicit Count(const std::string &array) : array(array) {}
        using IRVisitor::visit;
        void visit(const Load *op) override {
            count += op->name == array ? 1 : 0;
            IRVisitor::visit(op);
        }
        void visit(const Store *op) override {
            count += op->name == array ? 1 : 0;
            IRVisitor::visit(op);
        }
    } counter(array);
    s.accept(&counter);
    return counter.count;
}

// Where a stage begins: what is put before it, and what has been read until then.
class BeforeStage : public IRMutator {
public:
    std::set<std::string> read, read_later;  // arrays
    int found = 0;

    explicit BeforeStage(const std::string &stage) : stage(stage) {}
    Stmt with(const Stmt &inserted, const Stmt &body) {
        before = inserted;
        return mutate(body);
    }

private:
    const std::string &stage;
    Stmt before = Evaluate::make(0);
    bool in_branch = false;

    using IRMutator::visit;
    Stmt visit(const ProducerConsumer *op) override {
        if (!op->is_producer || op->name != stage) return IRMutator::visit(op);
        if (in_branch || found++ > 0) throw BadInput("a step does not compute " + stage + " once");
        return Block::make(before, op);
    }
    Stmt visit(const IfThenElse *op) override {
        const ScopedValue<bool> outer(in_branch, true);
        return IRMutator::visit(op);
    }
    Expr visit(const Load *op) override {
        (found == 0 ? read : read_later).insert(op->name);
        return IRMutator::visit(op);
    }
};

// What copies the steps of a loop.
class AheadCopies {
public:
    AheadCopies(const For *loop, const std::vector<TakeCopies::Taken> &copies, const std::map<std::string, int> &sizes,
                const CopiedPlaces &places, const Expr &test, bool finds_bounds, bool in_branches,
                const Expr &at_arrival)
        : loop(loop), sizes(sizes), places(places), test(test), finds_bounds(finds_bounds), in_branches(in_branches),
          arrival(Block::make(
              {Evaluate::make(cuda::wait_copies(0)), Evaluate::make(at_arrival), Evaluate::make(cuda::barrier())})) {
        for (const TakeCopies::Taken &taken : copies) add(taken);
    }

    Stmt run(const Stmt &compute) {
        const Expr step = Variable::make(Int(32), loop->name), steps = let_before("steps", loop->extent);
        const Stmt ahead = IfThenElse::make(step + 1 < steps, copies_of(step + 1));
        return with_first(Block::make({arrival, ahead, places.find(step + 2, steps), compute}), steps);
    }

    // The first part of a step reads `early` arrays. All threads branch alike, so that a barrier may be in a branch.
    Stmt run_in_turns(const Stmt &compute, const std::string &turn) {
        BeforeStage reads(turn);
        reads.with(Evaluate::make(0), compute);
        if (reads.found == 0) throw BadInput("a step does not compute " + turn);
        early = reads.read;
        in_turns = true;
        for (const auto &[array, size] : sizes) {
            if (early->count(array) != 0 && reads.read_later.count(array) != 0) {
                throw BadInput("a step reads " + array + ", which is copied in turns, before and after " + turn);
            }
        }
        const Expr step = Variable::make(Int(32), loop->name), steps = let_before("steps", loop->extent);
        const Stmt ahead = IfThenElse::make(step + 1 < steps, copies_of(step + 1));
        const Stmt handed_over = Block::make({arrival, ahead, places.find(step + 2, steps)});
        const Stmt both = BeforeStage(turn).with(handed_over, compute);
        of_early = false;
        const Stmt late = copies_of(step);
        of_early = true;
        const Stmt whole = Block::make({arrival, late, both});
        return with_first(test.defined() ? IfThenElse::make(test, whole, handed_over) : whole, steps);
    }

    // Turn i has the products of step i and what is made of them, and the delayed stage of the step before. It copies
    // what is early of step i + 1, and what the stage reads of step i.
    Stmt run_delayed(const DelayedStage &stage, const Expr &before_arrival) {
        early.emplace();
        for (const auto &[array, size] : sizes) {
            if (!stage.reads(array)) early->insert(array);
        }
        const Expr step = Variable::make(Int(32), loop->name), steps = let_before("steps", loop->extent);
        const Stmt done = Evaluate::make(before_arrival);
        const auto turn = [&](const Expr &i, const Stmt &compute) {
            const Stmt ahead = IfThenElse::make(i + 1 < steps, begin_copies(i + 1));
            of_early = false;
            const Stmt late = copies_of(i);
            of_early = true;
            return Block::make({arrival, ahead, late, places.find(i + 2, steps), compute});
        };
        const Stmt first = turn(0, stage.first()), last = Block::make({done, arrival, stage.last(steps)});
        const Stmt others = loop_of(steps - 1, Block::make(done, turn(step + 1, stage.turn())));
        return after_first(Block::make({first, others, last}), steps);
    }

private:
    Stmt loop_of(const Expr &steps, const Stmt &body) const {
        return For::make(loop->name, 0, steps, ForType::Serial, Partition::Never, loop->device_api, body);
    }

    // The loop, after the copies of the first step.
    Stmt with_first(const Stmt &body, const Expr &steps) { return after_first(loop_of(steps, body), steps); }
    Stmt after_first(Stmt result, const Expr &steps) {
        const Stmt barrier = Evaluate::make(cuda::barrier());
        result = Block::make({copies_of(0), places.find(1, steps), result});
        if (!places.arrays().empty()) result = Block::make({places.find(0, steps), barrier, result});
        result = IfThenElse::make(steps > 0, result);
        for (auto let = before.rbegin(); let != before.rend(); ++let) {
            result = LetStmt::make(let->first, let->second, result);
        }
        return result;
    }

    struct Source {
        TakeCopies::Taken taken;
        Expr first;          // address of step 0, where only the index depends on the step
        Expr base, of_step;  // else the terms of the address
        Expr behind;         // .. or what is added to that of the copy before
    };
    const For *const loop;
    const std::map<std::string, int> &sizes;
    const CopiedPlaces &places;
    const Expr test;
    const bool finds_bounds, in_branches;
    const Stmt arrival;                          // where a step's copies are
    std::optional<std::set<std::string>> early;  // arrays, where some are copied later
    bool in_turns = false;
    bool of_early = true;  // whether copies_of() are those to them
    std::vector<Source> sources;
    std::vector<std::pair<std::string, Expr>> before;  // the loop
    std::vector<std::pair<std::string, Expr>> at_each_step;
    std::map<Expr, Expr, IRDeepCompare> known;  // of both

    Expr at_step(const Expr &e, const Expr &step) const { return simplify(substitute(loop->name, step, e)); }

    // A value that is computed before the loop, once.
    Expr let_before(const std::string &name, const Expr &value) {
        Expr &known_as = known[value];
        if (!known_as.defined()) {
            before.emplace_back(unique_name(name), common_subexpression_elimination(value));
            known_as = Variable::make(value.type(), before.back().first);
        }
        return known_as;
    }

    // A value that copies_of() computes once.
    Expr let_at_step(const Expr &value) {
        Expr &known_as = known[value];
        if (!known_as.defined()) {
            at_each_step.emplace_back(unique_name("at_step"), value);
            known_as = Variable::make(value.type(), at_each_step.back().first);
        }
        return known_as;
    }

    void add(TakeCopies::Taken taken) {
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

    LinearTerms address_of(const SharedCopy &copy) const {
        return LinearTerms(copy.address + bytes_before(copy.index, copy));
    }

    // A comparison, of which what does not depend on the step is computed before the loop. Of wrapping words: LLVM
    // would make a bound of each copy of a sum of integers that cannot overflow, and keep all bounds in registers.
    Expr compared_before(const Expr &on) {
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

    static Expr bytes_before(const Expr &index, const SharedCopy &copy) {
        return cast<uint64_t>(index) * make_const(UInt(64), copy.type.bytes());
    }

    Expr address_at(const Source &source, const Expr &step, const Expr &before) const {
        const SharedCopy &copy = source.taken.copy;
        if (source.behind.defined()) return cuda::advance(before, source.behind);
        if (!source.first.defined()) return cuda::advance(source.base, at_step(source.of_step, step));
        const Expr moved = simplify(at_step(copy.index, step) - at_step(copy.index, 0));
        return source.first + bytes_before(moved, copy);
    }

    using Values = std::vector<std::pair<std::string, Expr>>;
    static Stmt with_values(const Values &values, Stmt result) {
        for (auto one = values.rbegin(); one != values.rend(); ++one) {
            result = LetStmt::make(one->first, one->second, result);
        }
        return result;
    }
    static bool same(const Expr &x, const Expr &y) {
        return x.defined() == y.defined() && (!x.defined() || equal(x, y));
    }

    // Neighbours with the same conditions: of the branches around them, where their addresses are computed there;
    // `whole`: by 16 bytes, or by elements where it does not hold.
    struct Group {
        Expr condition, whole;
        Type type;                           // of elements
        std::vector<Stmt> chunks, elements;  // of elements: number `each`
        Values addresses;                    // of those in a branch
    };
    static Stmt copies_of(const Group &group, const std::string &each) {
        Stmt copies = Block::make(group.chunks);
        if (group.whole.defined()) {
            const Stmt elements = SharedCopy::each_element(each, group.type, Block::make(group.elements));
            copies = IfThenElse::make(group.whole != 0, copies, elements);
        }
        copies = with_values(group.addresses, copies);
        return group.condition.defined() ? IfThenElse::make(group.condition, copies) : copies;
    }

    // As a group of their own, or of the next ones'.
    Stmt copies_of(const Expr &step) const {
        return Block::make(begin_copies(step), Evaluate::make(cuda::commit_copies()));
    }
    Stmt begin_copies(const Expr &step) const {
        Values always;  // addresses
        std::vector<Group> groups;
        Expr last;
        const std::string each = unique_name("element");
        for (const Source &source : sources) {
            SharedCopy copy = source.taken.copy;
            if (early && (early->count(copy.array) != 0) != of_early) continue;
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
            const Expr bytes =
                copy.on.defined() ? select(at_step(copy.on, step) != 0, copy.bytes, 0) : Expr(copy.bytes);
            copy.to = at_step(copy.to, step);
            if (!in_turns) copy.to = copy.to + simplify(step % 2) * sizes.at(copy.array);
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
};

}  // namespace

Stmt PipelineCopies::visit(const Allocate *op) {
    if (!is_shared_array(op)) return IRMutator::visit(op);
    arrays[op->name].elements = static_cast<int>(op->constant_allocation_size());
    arrays[op->name].bytes = arrays[op->name].elements * op->type.bytes();
    const Stmt body = mutate(op->body);
    const Array &array = arrays.at(op->name);
    if (array.buffers == 1)
        return Allocate::make(op->name, op->type, op->memory_type, op->extents, op->condition, body);
    int accesses = 0;
    for (const auto &[loop, of_loop] : array.accesses) accesses += of_loop;
    if (accesses_of(op->name, op->body) != accesses) {
        throw BadInput(op->name + " is copied in a loop and accessed outside it");
    }
    return Allocate::make(op->name, UInt(8), op->memory_type, {Expr(array.buffers * array.bytes)}, op->condition, body);
}

Stmt PipelineCopies::visit(const For *op) {
    if (op->for_type != ForType::Serial) return IRMutator::visit(op);
    TakeCopies take([this](const std::string &name) { return arrays.count(name) != 0; });
    // The test of a whole step is one of all its copies.
    const auto *tested = op->body.as<IfThenElse>();
    const Expr test = tested != nullptr && !tested->else_case.defined() ? tested->condition : Expr();
    Stmt compute = take.mutate(test.defined() ? tested->then_case : op->body);
    if (take.taken.empty()) return IRMutator::visit(op);
    if (!is_const_zero(op->min)) throw BadInput("loop " + op->name + ", which copies, does not begin with 0");
    std::map<std::string, int> sizes;
    for (const auto &[copy, condition] : take.taken) {
        Array &array = arrays.at(copy.array);
        if (array.bytes % 16 != 0) throw BadInput(copy.array + " is not a multiple of 16 bytes");
        array.buffers = turn.empty() ? 2 : 1;
        array.accesses[op] = accesses_of(copy.array, op->body);
        sizes[copy.array] = array.bytes / copy.type.bytes();
    }
    std::vector<SharedCopy *> copies;
    for (TakeCopies::Taken &taken : take.taken) copies.push_back(&taken.copy);
    std::map<std::string, int> elements;
    for (const auto &[name, array] : arrays) elements[name] = array.elements;
    const bool delays = delay && found == 0;
    found++;
    const int buffers_of_places = delays ? 4 : 2;
    const CopiedPlaces places(op, &compute, copies, elements, buffers_of_places);
    for (const auto &[name, size] : places.arrays()) {
        Array &array = arrays.at(name);
        array.buffers = std::max(array.buffers, buffers_of_places);
        arrays.at(name).accesses[op] = accesses_of(name, op->body);
    }
    AheadCopies ahead(op, take.taken, sizes, places, test, finds_bounds, in_branches,
                      delay ? delay->at_arrival : Expr(0));
    if (!turn.empty()) return ahead.run_in_turns(compute, turn);
    InBuffer in_buffer(sizes, Variable::make(Int(32), op->name) % 2, InBuffer::Stores::refuse);
    compute = in_buffer.mutate(compute);
    for (const auto &[array, size] : sizes) {
        if (in_buffer.read.count(array) == 0) {
            throw BadInput("loop " + op->name + " copies to " + array + " and does not read it: unroll it");
        }
    }
    if (delays) {
        if (test.defined()) throw BadInput("steps of which a stage is delayed are not passed over");
        return ahead.run_delayed(DelayedStage(op, compute, *delay), delay->before_arrival);
    }
    if (test.defined()) compute = IfThenElse::make(test, compute);
    return ahead.run(compute);
}

}  // namespace heed
