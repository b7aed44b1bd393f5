#include "generators/lowering/cuda/repeat_loops.h"

#include <algorithm>

#include "generators/common/array_names.h"
#include "generators/common/bad_input.h"
#include "generators/common/serial_loop.h"
#include "generators/cuda/intrinsics.h"
#include "generators/lowering/cuda/decide.h"
#include "generators/lowering/cuda/lets.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const char *const repetition_name = "heed_in_repetition";

class AtEachStep : public IRMutator {
public:
    explicit AtEachStep(const Stmt &first) : first(first) {}

private:
    const Stmt &first;

    using IRMutator::visit;
    Stmt visit(const For *op) override { return with_body(op, Block::make(first, op->body)); }
};

// What a thread stores of the doubts.
class StoredDoubts : public LetVisitor {
public:
    Expr some = make_zero(Int(32));

    explicit StoredDoubts(const std::string &func) : func(func) {}

private:
    const std::string &func;
    std::vector<Expr> places;

    using LetVisitor::visit;
    void visit(const Store *op) override {
        const Expr place = lets.in_full(op->index);
        const bool is_known = std::any_of(places.begin(), places.end(), [&](const Expr &x) { return equal(x, place); });
        if (func_of_array(op->name) != func || is_known) return;
        places.push_back(place);
        some = some | Load::make(Int(32), op->name, place, Buffer<>(), Parameter(), const_true(), {});
    }
};

}  // namespace

Stmt RepeatLoops::visit(const ProducerConsumer *op) {
    if (op->is_producer && held.count(op->name) != 0) held_stages.push_back(op);
    if (op->is_producer && op->name == stage) {
        repetition = decided(op->body, repetition_name, true);
        if (!held_stages.empty()) repetition = AtEachStep(Block::make(held_stages)).mutate(repetition);
        return ProducerConsumer::make(op->name, true, decided(op->body, repetition_name, false));
    }
    if (!op->is_producer || op->name != doubts) return IRMutator::visit(op);
    if (!repetition.defined()) throw BadInput(doubts + " are found before " + stage + " is computed");
    found++;
    StoredDoubts stored(doubts);
    op->body.accept(&stored);
    const Stmt again = ProducerConsumer::make(stage, true, repetition);
    return Block::make(op, IfThenElse::make(cuda::barrier_any(stored.some) != 0, again));
}

Stmt ReadThreadsAnew::visit(const LetStmt *op) {
    const Expr value = substitute(of_threads, op->value);
    const bool of_block = !block.empty() && expr_uses_var(value, block);
    if (of_block || expr_uses_var(value, thread_variable)) of_threads[op->name] = value;
    return IRMutator::visit(op);
}

Stmt ReadThreadsAnew::visit(const IfThenElse *op) {
    const auto *differs = op->condition.as<NE>();
    const auto *vote = differs != nullptr ? differs->a.as<Call>() : nullptr;
    if (vote == nullptr || vote->name != "heed_barrier_any") return IRMutator::visit(op);
    in_repetition = true;
    const Stmt again = anew(IRMutator::mutate(op->then_case));
    in_repetition = false;
    return IfThenElse::make(op->condition, again);
}

Stmt ReadThreadsAnew::visit(const ProducerConsumer *op) {
    const std::set<std::string> &reads_anew = op->is_producer ? made_anew : read_after;
    if (reads_anew.count(op->name) == 0) return IRMutator::visit(op);
    return ProducerConsumer::make(op->name, op->is_producer, anew(op->body));
}

Stmt ReadThreadsAnew::visit(const For *op) {
    if (op->for_type == ForType::GPUBlock) block = op->name;
    if (!in_repetition || op->for_type != ForType::Serial) return IRMutator::visit(op);
    return with_body(op, anew(op->body));
}

Stmt ReadThreadsAnew::anew(const Stmt &s) const {
    const std::string of_thread = unique_name("thread"), of_block = unique_name("block");
    const std::map<std::string, Expr> numbers = {{thread_variable, Variable::make(Int(32), of_thread)},
                                                 {block, Variable::make(Int(32), of_block)}};
    const Stmt again = substitute(numbers, substitute(of_threads, s));
    return LetStmt::make(of_thread, cuda::thread_index(), LetStmt::make(of_block, cuda::block_index(), again));
}

}  // namespace heed
