#include "generators/lowering/weave_tiles.h"

#include <algorithm>
#include <utility>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const char *const step_name = "heed_tile_step";

const Call *as_tile_step(const Evaluate *op) {
    const auto *call = op->value.as<Call>();
    return call && call->name == step_name ? call : nullptr;
}

// What a loop's body does, in its order: stages, each whole, and what consumes them, without a name; and the arrays
// that it allocates, in registers.
struct Stages {
    std::vector<const Allocate *> arrays;
    std::vector<std::pair<std::string, Stmt>> in_order;

    explicit Stages(const Stmt &body) { add(body); }  // which must live

    const Stmt &of(const std::string &name) const {
        const auto is_it = [&](const auto &stage) { return stage.first == name; };
        const auto found = std::find_if(in_order.begin(), in_order.end(), is_it);
        if (found == in_order.end()) throw CompileError("no stage " + name + " in a loop to weave");
        return found->second;
    }

private:
    void add(const Stmt &stmt) {
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
};

// The arrays live as long as the loop's body.
class DropFrees : public IRMutator {
    using IRMutator::visit;
    Stmt visit(const Free *) override { return Evaluate::make(0); }
};

class DropSteps : public IRMutator {
    using IRMutator::visit;
    Stmt visit(const Evaluate *op) override { return as_tile_step(op) ? Evaluate::make(0) : Stmt(op); }
};

// Loads of an array become a value.
class ReadAs : public IRMutator {
public:
    ReadAs(std::string array, Expr value) : array(std::move(array)), value(std::move(value)) {}

private:
    using IRMutator::visit;
    const std::string array;
    const Expr value;

    Expr visit(const Load *op) override {
        if (op->name != array) return IRMutator::visit(op);
        return op->type.is_scalar() ? value : Broadcast::make(value, op->type.lanes());
    }
};

// The loads of an array, each once.
class LoadsOf : public IRVisitor {
public:
    std::vector<Expr> loads;

    LoadsOf(const std::string &array, const Stmt &stmt) : array(array) { stmt.accept(this); }

private:
    using IRVisitor::visit;
    const std::string &array;

    void visit(const Load *op) override {
        const auto is_same = [&](const Expr &other) { return equal(other, op); };
        if (op->name == array && std::none_of(loads.begin(), loads.end(), is_same)) loads.emplace_back(op);
        IRVisitor::visit(op);
    }
};

// A stage as what it does before its loop over the keys, and the loop; what follows the loop is not part of it.
struct KeyLoop {
    std::vector<Stmt> before;
    const For *loop = nullptr;

    explicit KeyLoop(const Stmt &stage) { add(stage); }  // which must live

private:
    void add(const Stmt &stmt) {
        if (loop) return;
        if (const auto *stage = stmt.as<ProducerConsumer>()) return add(stage->body);
        if (const auto *block = stmt.as<Block>()) {
            add(block->first);
            return add(block->rest);
        }
        loop = stmt.as<For>();
        if (!loop) before.push_back(stmt);
    }
};

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

// Tiles with a part of a loop after each of their steps.
class Weave : public IRMutator {
public:
    // reads_product: the loop goes through the rows of the product, one row of tiles later than the tiles do.
    Weave(const For *loop, bool reads_product)
        : loop(loop), reads_product(reads_product), length(constant(loop->extent)) {}

    // After mutate(), where the loop reads the product: its part for the last row of tiles.
    Stmt last_row() const { return part_of(loop, length - of_row, of_row); }

private:
    using IRMutator::visit;
    const For *const loop;
    const bool reads_product;
    const int length;
    int of_row = 0;  // iterations for a row of tiles

    // The part `number` of `of_parts` of the iterations from `first` on.
    Stmt part(const Expr &first, int iterations, const Expr &number, const Expr &of_parts) const {
        const Expr most = simplify((iterations + of_parts - 1) / of_parts), before = simplify(most * number);
        const bool are_equal = can_prove(iterations % of_parts == 0);
        return part_of(loop, first + before, are_equal ? most : clamp(iterations - before, 0, most));
    }
    Stmt visit(const Evaluate *op) override {
        const Call *call = as_tile_step(op);
        if (!call) return op;
        const TileStep step = {call->args[0], call->args[1], call->args[2], call->args[3]};
        if (!reads_product) return part(0, length, step.row * step.of_row + step.number, step.of_row * step.rows);
        of_row = length / constant(step.rows);
        const Expr has_row_before = simplify(step.row > 0);
        if (is_const_zero(has_row_before)) return Evaluate::make(0);
        return IfThenElse::make(has_row_before, part((step.row - 1) * of_row, of_row, step.number, step.of_row));
    }
};

// All that a stage does, its loop in equal parts beside the tiles.
Stmt woven(const Stmt &tiles, const Stmt &stage) {
    KeyLoop keys(stage);
    keys.before.push_back(Weave(keys.loop, false).mutate(tiles));
    return Block::make(keys.before);
}

// A loop that reads the product of the tiles.
Stmt woven_behind(const Stmt &tiles, const For *loop) {
    Weave weave(loop, true);
    const Stmt beside = weave.mutate(tiles);
    return Block::make(beside, weave.last_row());
}

// A product of which only what its last two rows of tiles hold is kept.
class Fold : public IRMutator {
public:
    Fold(std::string array, int elements) : array(std::move(array)), elements(elements) {}

private:
    using IRMutator::visit;
    const std::string array;
    const int elements;

    Expr folded(const Expr &index, int of) const { return index % make_const(index.type(), of); }
    Expr visit(const Load *op) override {
        if (op->name != array) return IRMutator::visit(op);
        const auto *ramp = op->index.as<Ramp>();
        return Load::make(op->type, array, Ramp::make(folded(ramp->base, elements), ramp->stride, ramp->lanes),
                          op->image, op->param, op->predicate, op->alignment);
    }
    Expr visit(const Call *op) override {
        if (op->name != "tile_store" || op->args[2].as<Variable>()->name != array) return IRMutator::visit(op);
        std::vector<Expr> args = op->args;
        args[3] = folded(args[3], 4 * elements);
        return Call::make(op->type, op->name, args, op->call_type);
    }
};

// The largest halves of the words that are stored, by vectors of rows.
class LargestWeights : public IRMutator {
public:
    explicit LargestWeights(std::string weights)
        : weights(std::move(weights)), largest(unique_name("largest_weight")) {}

    Stmt set(const Expr &value) const {
        std::vector<Stmt> all;
        for (int row = 0; row < rows; row++) {
            all.push_back(Store::make(largest, Broadcast::make(value, lanes), place(row), Parameter(),
                                      const_true(lanes), ModulusRemainder()));
        }
        return Block::make(all);
    }
    Expr some_at_least(const Expr &value) const {
        Expr all = at(0);
        for (int row = 1; row < rows; row++) all = max(all, at(row));
        return VectorReduce::make(VectorReduce::Or, all >= Broadcast::make(value, lanes), 1);
    }
    Stmt lives_in(const Stmt &body) const {
        return Allocate::make(largest, UInt(16), MemoryType::Register, {rows * lanes}, const_true(), body);
    }

private:
    using IRMutator::visit;
    const std::string weights, largest;
    int rows = 0, lanes = 0;

    Expr place(int row) const { return Ramp::make(row * lanes, 1, lanes); }
    Expr at(int row) const {
        return Load::make(UInt(16, lanes), largest, place(row), Buffer<>(), Parameter(), const_true(lanes),
                          ModulusRemainder());
    }
    Stmt visit(const Store *op) override {
        if (op->name != weights) return IRMutator::visit(op);
        const int row = rows++;
        lanes = 2 * op->value.type().lanes();
        const Expr stored =
            Load::make(op->value.type(), weights, op->index, Buffer<>(), Parameter(), op->predicate, op->alignment);
        const Expr both = max(at(row), reinterpret(UInt(16, lanes), stored));
        return Block::make(op,
                           Store::make(largest, both, place(row), Parameter(), const_true(lanes), ModulusRemainder()));
    }
};

}  // namespace

Stmt tile_step(const TileStep &step) {
    return Evaluate::make(
        Call::make(Int(32), step_name, {step.row, step.number, step.of_row, step.rows}, Call::PureIntrinsic));
}

Stmt WeaveTiles::visit(const For *op) {
    if (op->name != names.loop) return IRMutator::visit(op);
    const Stmt kept = DropFrees().mutate(op->body);
    const Stages stages(kept);
    found++;

    const Stmt reference = ReadAs(names.maxima, Float(32).min()).mutate(stages.of(names.reference));
    const KeyLoop exact(stages.of(names.exact_sum));
    Expr is_kept = names.may_keep && exact.loop->extent <= 0;  // nobody reads the logits again
    for (const Expr &before : LoadsOf(names.state, reference).loads) {
        const Type bits = Int(32, before.type().lanes());
        const Expr size = reinterpret(bits, before) & make_const(bits, 0x7fffffff);
        is_kept = is_kept && VectorReduce::make(VectorReduce::And, size < make_const(bits, names.huge_reference), 1);
    }

    LargestWeights largest(names.weights);
    Fold fold(names.product, names.folded_product);
    const KeyLoop weights(stages.of(names.weights));
    const Stmt weights_by_keys = fold.mutate(largest.mutate(Stmt(weights.loop)));
    const Stmt nothing_again = Store::make(names.again_end, 0, 0, Parameter(), const_true(), ModulusRemainder());
    const Stmt by_reference_before =
        Block::make({reference, nothing_again, largest.set(make_zero(UInt(16))),
                     woven_behind(fold.mutate(stages.of(names.product)), weights_by_keys.as<For>())});
    const Expr moves = largest.some_at_least(make_const(UInt(16), names.large_weight));

    std::vector<Stmt> body, by_maxima;  // the latter from the product to the weights
    bool until_weights = false;
    for (const auto &[name, stage] : stages.in_order) {
        if (name == names.product) until_weights = true;
        if (until_weights) {
            by_maxima.push_back(stage);
        } else if (name == names.outputs) {
            body.push_back(woven(stage, stages.of(names.sums)));
        } else if (name != names.sums) {
            body.push_back(stage);
        }
        if (name != names.weights) continue;
        until_weights = false;
        body.insert(body.end(), {largest.set(UInt(16).max()), IfThenElse::make(is_kept, by_reference_before),
                                 IfThenElse::make(moves, Block::make(by_maxima))});
    }
    Stmt all = largest.lives_in(Block::make(body));
    for (const Allocate *array : stages.arrays) {
        all = Allocate::make(array->name, array->type, array->memory_type, array->extents, array->condition, all);
    }
    return DropSteps().mutate(
        For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, all));
}

}  // namespace heed
