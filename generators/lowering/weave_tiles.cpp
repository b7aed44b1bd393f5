#include "generators/lowering/weave_tiles.h"

#include <algorithm>
#include <utility>

#include "generators/lowering/step_stages.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const char *const step_name = "heed_tile_step";

const Call *as_tile_step(const Evaluate *op) {
    const auto *call = op->value.as<Call>();
    return call && call->name == step_name ? call : nullptr;
}

class DropSteps : public IRMutator {
    using IRMutator::visit;
    Stmt visit(const Evaluate *op) override { return as_tile_step(op) ? Evaluate::make(0) : Stmt(op); }
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

}  // namespace

Stmt tile_step(const TileStep &step) {
    return Evaluate::make(
        Call::make(Int(32), step_name, {step.row, step.number, step.of_row, step.rows}, Call::PureIntrinsic));
}

Stmt WeaveTiles::visit(const For *op) {
    if (op->name != names.loop) return IRMutator::visit(op);
    const StepStages stages(op->body);
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
