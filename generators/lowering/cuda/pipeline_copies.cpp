#include "generators/lowering/cuda/pipeline_copies.h"

#include <optional>

#include "generators/common/bad_input.h"
#include "generators/cuda/intrinsics.h"
#include "generators/lowering/cuda/copied_places.h"
#include "generators/lowering/cuda/in_buffer.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/cuda/step_copies.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// The copies of a loop's body, in full, and the body without them.
class TakeCopies : public IRMutator {
public:
    std::vector<TakenCopy> taken;

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

// What becomes of a loop whose steps copy.
class PipelinedLoop {
    using Which = StepCopies::Which;

public:
    PipelinedLoop(const For *loop, StepCopies copies, const CopiedPlaces &places, const Expr &at_arrival)
        : loop(loop), copies(std::move(copies)), places(places), steps(this->copies.let_before("steps", loop->extent)),
          arrival(Block::make(
              {Evaluate::make(cuda::wait_copies()), Evaluate::make(at_arrival), Evaluate::make(cuda::barrier())})) {}

    Stmt run(const Stmt &compute) const {
        const Stmt ahead = where(step + 1 < steps, copies.of(step + 1));
        return after_first(loop_of(steps, Block::make({arrival, ahead, places.find(step + 2, steps), compute})));
    }

    // The first part of a step, until `turn` begins, reads `early` arrays. All threads branch alike, so that a barrier
    // may be in a branch. test: of a step, undefined for none.
    Stmt run_in_turns(const Stmt &compute, const std::string &turn, const Expr &test) const {
        const Stmt ahead = where(step + 1 < steps, copies.of(step + 1, Which::early));
        const Stmt handed_over = Block::make({arrival, ahead, places.find(step + 2, steps)});
        const Stmt both = BeforeStage(turn).with(handed_over, compute);
        const Stmt whole = Block::make({arrival, copies.of(step, Which::late), both});
        return after_first(loop_of(steps, test.defined() ? IfThenElse::make(test, whole, handed_over) : whole),
                           Which::early);
    }

    // Turn i has the products of step i and what is made of them, and the delayed stage of the step before. It copies
    // what is early of step i + 1, and what the stage reads of step i.
    Stmt run_delayed(const DelayedStage &stage, const Expr &before_arrival) const {
        const Stmt done = Evaluate::make(before_arrival);
        const auto turn = [&](const Expr &i, const Stmt &compute) {
            const Stmt ahead = where(i + 1 < steps, copies.begin(i + 1, Which::early));
            return Block::make({arrival, ahead, copies.of(i, Which::late), places.find(i + 2, steps), compute});
        };
        const Stmt first = turn(0, stage.first()), last = Block::make({done, arrival, stage.last(steps)});
        const Stmt others = loop_of(steps - 1, Block::make(done, turn(step + 1, stage.turn())));
        return after_first(Block::make({first, others, last}), Which::early);
    }

private:
    const For *const loop;
    StepCopies copies;
    const CopiedPlaces &places;
    const Expr steps, step = Variable::make(Int(32), loop->name);
    const Stmt arrival;  // where a step's copies are

    static Stmt where(const Expr &condition, const Stmt &s) { return IfThenElse::make(condition, s); }
    Stmt loop_of(const Expr &extent, const Stmt &body) const {
        return For::make(loop->name, 0, extent, ForType::Serial, Partition::Never, loop->device_api, body);
    }
    // The loop, after the copies of the first step.
    Stmt after_first(Stmt result, Which which = Which::all) const {
        result = Block::make({copies.of(0, which), places.find(1, steps), result});
        if (!places.arrays().empty()) {
            result = Block::make({places.find(0, steps), Evaluate::make(cuda::barrier()), result});
        }
        return copies.with_values_before(where(steps > 0, result));
    }
};

// The arrays that a step reads before one of its stages begins, and not later.
std::set<std::string> read_before(const Stmt &compute, const std::string &turn,
                                  const std::map<std::string, int> &copied) {
    BeforeStage reads(turn);
    reads.with(Evaluate::make(0), compute);
    if (reads.found == 0) throw BadInput("a step does not compute " + turn);
    for (const auto &[array, size] : copied) {
        if (reads.read.count(array) != 0 && reads.read_later.count(array) != 0) {
            throw BadInput("a step reads " + array + ", which is copied in turns, before and after " + turn);
        }
    }
    return reads.read;
}

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
    for (TakenCopy &taken : take.taken) copies.push_back(&taken.copy);
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
    StepCopies step_copies(op, take.taken, sizes, test, finds_bounds, in_branches);
    const auto pipelined = [&] {
        return PipelinedLoop(op, std::move(step_copies), places, delay ? delay->at_arrival : Expr(0));
    };
    if (!turn.empty()) {
        step_copies.have_one_buffer();
        step_copies.tell_early(read_before(compute, turn, sizes));
        return pipelined().run_in_turns(compute, turn, test);
    }
    InBuffer in_buffer(sizes, Variable::make(Int(32), op->name) % 2, InBuffer::Stores::refuse);
    compute = in_buffer.mutate(compute);
    for (const auto &[array, size] : sizes) {
        if (in_buffer.read.count(array) == 0) {
            throw BadInput("loop " + op->name + " copies to " + array + " and does not read it: unroll it");
        }
    }
    if (!delays) return pipelined().run(test.defined() ? IfThenElse::make(test, compute) : compute);
    if (test.defined()) throw BadInput("steps of which a stage is delayed are not passed over");
    const DelayedStage stage(op, compute, *delay);
    std::set<std::string> early;
    for (const auto &[array, size] : sizes) {
        if (!stage.reads(array)) early.insert(array);
    }
    step_copies.tell_early(early);
    return pipelined().run_delayed(stage, delay->before_arrival);
}

}  // namespace heed
