#include "generators/lowering/cuda/pipeline_copies.h"

#include "generators/common/bad_input.h"
#include "generators/cuda/intrinsics.h"
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
        auto copy = is_shared(op->name) ? SharedCopy::of(op) : std::nullopt;
        if (!copy) return op;
        for (Expr *e : {&copy->to, &copy->address, &copy->index, &copy->on}) {
            if (e->defined()) *e = lets.in_full(*e);
        }
        if (!begins_chunk(copy->to, copy->type)) {
            throw BadInput("copies to " + op->name + " do not begin at multiples of 16 bytes");
        }
        taken.push_back({*copy, condition});
        return Evaluate::make(0);
    }
};

// What a step reads is in the buffer of the step.
class InBuffer : public IRMutator {
public:
    std::set<std::string> read;

    // sizes: elements of a buffer.
    InBuffer(const std::map<std::string, int> &sizes, Expr buffer) : sizes(sizes), buffer(std::move(buffer)) {}

private:
    const std::map<std::string, int> &sizes;
    const Expr buffer;

    using IRMutator::visit;
    Expr visit(const Load *op) override {
        const auto size = sizes.find(op->name);
        if (size == sizes.end()) return IRMutator::visit(op);
        read.insert(op->name);
        Expr behind = buffer * size->second;
        if (op->type.is_vector()) behind = Broadcast::make(behind, op->type.lanes());
        return Load::make(op->type, op->name, mutate(op->index) + behind, op->image, op->param, op->predicate, {});
    }
    Stmt visit(const Store *op) override {
        if (sizes.count(op->name) != 0) {
            throw BadInput(op->name + " is copied in a loop, and something else stores to it");
        }
        return IRMutator::visit(op);
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

// What copies the steps of a loop.
class AheadCopies {
public:
    AheadCopies(const For *loop, const std::vector<TakeCopies::Taken> &copies, const std::map<std::string, int> &sizes)
        : loop(loop), sizes(sizes) {
        for (const TakeCopies::Taken &taken : copies) add(taken);
    }

    Stmt run(const Stmt &compute) const {
        const Expr step = Variable::make(Int(32), loop->name);
        const Stmt ahead = IfThenElse::make(step + 1 < loop->extent, copies_of(step + 1));
        const Stmt body =
            Block::make({Evaluate::make(cuda::wait_copies(0)), Evaluate::make(cuda::barrier()), ahead, compute});
        Stmt result = For::make(loop->name, 0, loop->extent, ForType::Serial, Partition::Never, loop->device_api, body);
        result = IfThenElse::make(loop->extent > 0, Block::make(copies_of(0), result));
        for (auto let = before.rbegin(); let != before.rend(); ++let) {
            result = LetStmt::make(let->first, let->second, result);
        }
        return result;
    }

private:
    struct Source {
        TakeCopies::Taken taken;
        Expr first;  // address of step 0, where only the index depends on the step
    };
    const For *const loop;
    const std::map<std::string, int> &sizes;
    std::vector<Source> sources;
    std::vector<std::pair<std::string, Expr>> before;  // the loop

    Expr at_step(const Expr &e, const Expr &step) const { return simplify(substitute(loop->name, step, e)); }

    void add(const TakeCopies::Taken &taken) {
        const SharedCopy &copy = taken.copy;
        Expr first;
        if (!expr_uses_var(copy.address, loop->name)) {
            const Expr address = copy.address + bytes_before(at_step(copy.index, 0), copy);
            before.emplace_back(unique_name("from"), common_subexpression_elimination(address));
            first = Variable::make(UInt(64), before.back().first);
        }
        sources.push_back({taken, first});
    }

    static Expr bytes_before(const Expr &index, const SharedCopy &copy) {
        return cast<uint64_t>(index) * make_const(UInt(64), copy.type.bytes());
    }

    Stmt copies_of(const Expr &step) const {
        std::vector<Stmt> all;
        for (const Source &source : sources) {
            SharedCopy copy = source.taken.copy;
            const Expr index = at_step(copy.index, step);
            const Expr from = source.first.defined()
                                  ? source.first + bytes_before(simplify(index - at_step(copy.index, 0)), copy)
                                  : at_step(copy.address, step) + bytes_before(index, copy);
            const Expr bytes = copy.on.defined() ? select(at_step(copy.on, step) != 0, 16, 0) : Expr(16);
            copy.to = at_step(copy.to, step) + simplify(step % 2) * sizes.at(copy.array);
            Stmt s = Evaluate::make(cuda::copy_async(copy.to_address(), from, bytes));
            if (source.taken.condition.defined()) s = IfThenElse::make(at_step(source.taken.condition, step), s);
            all.push_back(s);
        }
        all.push_back(Evaluate::make(cuda::commit_copies()));
        return Block::make(all);
    }
};

}  // namespace

Stmt PipelineCopies::visit(const Allocate *op) {
    if (op->memory_type != MemoryType::GPUShared) return IRMutator::visit(op);
    arrays[op->name].bytes = static_cast<int>(op->constant_allocation_size()) * op->type.bytes();
    const Stmt body = mutate(op->body);
    const Array &array = arrays.at(op->name);
    if (!array.is_doubled) return Allocate::make(op->name, op->type, op->memory_type, op->extents, op->condition, body);
    if (accesses_of(op->name, op->body) != array.accesses) {
        throw BadInput(op->name + " is copied in a loop and accessed outside it");
    }
    return Allocate::make(op->name, UInt(8), op->memory_type, {Expr(2 * array.bytes)}, op->condition, body);
}

Stmt PipelineCopies::visit(const For *op) {
    if (op->for_type != ForType::Serial) return IRMutator::visit(op);
    TakeCopies take([this](const std::string &name) { return arrays.count(name) != 0; });
    Stmt compute = take.mutate(op->body);
    if (take.taken.empty()) return IRMutator::visit(op);
    if (!is_const_zero(op->min)) throw BadInput("loop " + op->name + ", which copies, does not begin with 0");
    std::map<std::string, int> sizes;
    for (const auto &[copy, condition] : take.taken) {
        Array &array = arrays.at(copy.array);
        if (array.bytes % 16 != 0) throw BadInput(copy.array + " is not a multiple of 16 bytes");
        array.is_doubled = true;
        array.accesses = accesses_of(copy.array, op->body);
        sizes[copy.array] = array.bytes / copy.type.bytes();
    }
    InBuffer in_buffer(sizes, Variable::make(Int(32), op->name) % 2);
    compute = in_buffer.mutate(compute);
    for (const auto &[array, size] : sizes) {
        if (in_buffer.read.count(array) == 0) {
            throw BadInput("loop " + op->name + " copies to " + array + " and does not read it: unroll it");
        }
    }
    found++;
    return AheadCopies(op, take.taken, sizes).run(compute);
}

}  // namespace heed
