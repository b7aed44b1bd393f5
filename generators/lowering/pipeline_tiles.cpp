#include "generators/lowering/pipeline_tiles.h"

#include <numeric>
#include <optional>
#include <vector>

#include "generators/common/serial_loop.h"
#include "generators/lowering/bf16_tiles.h"
#include "generators/lowering/step_stages.h"
#include "generators/lowering/tile_block.h"
#include "generators/lowering/tile_rows.h"
#include "generators/lowering/woven_weights.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

Bf16Product product_of(const Stmt &stage) {
    std::optional<Bf16Product> found;
    with_product(stage.as<ProducerConsumer>()->body, [&](const Bf16Product &product) {
        found = product;
        return Evaluate::make(0);
    });
    if (!found) throw CompileError("a stage to pipeline is no product of bf16");
    return *found;
}

class Pipeline {
public:
    Pipeline(const PipelineTiles::Step &names, const For *loop)
        : names(names), loop(loop), stages(loop->body), sums(stages.of(names.sums)),
          product(product_of(stages.of(names.product))), outputs(product_of(stages.of(names.outputs))),
          step(Variable::make(Int(32), loop->name)), rows_of_keys(constant(TileBlock(product).blocks_m())),
          rows_of_values(TileBlock(outputs).blocks_m()),
          is_static(is_const(rows_of_values) && is_const(simplify(product.pairs))),
          periods(is_static ? std::gcd(rows_of_keys, constant(rows_of_values)) : rows_of_keys),
          weights_elements(elements_of(names.weights)),
          product_elements(constant(product.m) / rows_of_keys * product.n * kept_rows), largest(names.weights),
          reads_ahead(names.product, ahead,
                      [this](const Expr &index) { return index % make_const(index.type(), product_elements); }),
          exact_sums(with_logits(stages.of(names.exact_sum))),
          weights({KeyLoop(with_logits(stages.of(names.weights))), names.weights}, {sums, names.sums},
                  {exact_sums, names.exact_sum}, &largest, &reads_ahead) {
        if (rows_of_keys % kept_rows != 0) throw CompileError("an odd number of rows of tiles to pipeline");
        outputs.set_started(names.started.started);
        first_key_of_step = stores_to(names.first_key, stages.of(names.first_key)).at(0)->value;
        if (!outputs.elsewhere.defined()) return;
        const Stmt end = without_lets(stages.of(names.nonfinite_end));
        made_later =
            !ReadAs(names.nonfinite_end, stores_to(names.nonfinite_end, end).at(0)->value).mutate(outputs.elsewhere);
        outputs.elsewhere = Expr();
    }

    Stmt lowered() {
        std::vector<Stmt> body, by_maxima;
        bool until_weights = false;
        for (const auto &[name, stage] : stages.in_order) {
            if (name == names.product) until_weights = true;
            if (until_weights) {
                by_maxima.push_back(name == names.product ? with_tiles(stage) : stage);
            } else if (name == names.outputs) {
                body.push_back(with_product(stage.as<ProducerConsumer>()->body,
                                            [this](const Bf16Product &product) { return elsewhere(product); }));
            } else if (name != names.sums && name != names.exact_sum) {
                body.push_back(stage);
            }
            if (name != names.weights) continue;
            until_weights = false;
            by_maxima.insert(by_maxima.end(), {stages.of(names.sums), stages.of(names.exact_sum)});
            const Expr moves = largest.some_at_least(make_const(UInt(16), names.large_weight));
            body.insert(body.end(),
                        {choose_reference(), largest.set(UInt(16).max()),
                         IfThenElse::make(names.may_keep && references_fit(), beside_tiles(), behind_tiles()),
                         IfThenElse::make(moves, Block::make(by_maxima))});
        }
        const Stmt steps = with_body(loop, at_parity(Block::make(body)));
        const Expr last = loop->min + loop->extent - 1;
        const Stmt all = Block::make({IfThenElse::make(names.may_keep, first_keys(loop->min)), steps,
                                      IfThenElse::make(pending(last), outputs_of(last))});
        return with_arrays(IfThenElse::make(loop->extent > 0, all));
    }

private:
    const PipelineTiles::Step &names;
    const For *const loop;
    const StepStages stages;
    const KeyLoop sums;
    const Bf16Product product;
    Bf16Product outputs;
    Expr made_later = const_true();  // whether the outputs of a step are not made at its end
    const Expr step;
    const int rows_of_keys;  // rows of tiles of the two products
    const Expr rows_of_values;
    const bool is_static;  // whether all sizes are known
    const int periods;     // of the order of tiles, in a step
    const AskedRows asked_rows{names.asks, periods};
    const int weights_elements, product_elements;
    const std::string ahead = unique_name("product_ahead");
    LargestWeights largest;
    ReplaceArray reads_ahead;
    const KeyLoop exact_sums;
    const WovenWeights weights;
    Expr first_key_of_step;

    int elements_of(const std::string &array) const {
        int all = 1;
        for (const Expr &extent : stages.array(array).extents) all *= constant(extent);
        return all;
    }
    // Reads of logits become what is stored of them.
    Stmt with_logits(const Stmt &stage) const {
        return names.logits.empty() ? stage : InlineStage(names.logits, stages.of(names.logits)).mutate(stage);
    }
    // Whether the outputs of a step before are still to be made.
    Expr pending(const Expr &other) const { return in_step(made_later, other); }
    Expr has_outputs_before() const { return step > loop->min && pending(step - 1); }
    Stmt elsewhere(const Bf16Product &of_step) const {
        if (!of_step.elsewhere.defined()) return Evaluate::make(0);
        Bf16Product there = of_step;
        there.elsewhere = Expr();
        there.a = of_step.other_a;
        there.b.offset = at_parity_of(of_step.b.offset, step);
        there.set_started(names.started.started);
        return IfThenElse::make(of_step.elsewhere, matrix_tiles(there));
    }
    Expr at_parity_of(const Expr &offset, const Expr &of_step) const {
        return offset + cast<int64_t>(parity(of_step)) * long_int(4 * int64_t{weights_elements});
    }
    Expr parity(const Expr &of_step) const { return (of_step - loop->min) % 2; }

    Stmt at_parity(const Stmt &stmt) const {
        return ReplaceArray(names.weights, names.weights,
                            [&](const Expr &index) {
                                return index +
                                       cast(index.type(), parity(step)) * make_const(index.type(), weights_elements);
                            })
            .mutate(stmt);
    }
    Expr in_step(const Expr &offset, const Expr &other) const {
        return substitute(loop->name, other, ReadAs(names.first_key, first_key_of_step).mutate(offset));
    }
    Bf16Product outputs_in(const Expr &other) const {
        Bf16Product result = outputs;
        result.a.offset = in_step(outputs.a.offset, other);
        result.b.offset = at_parity_of(outputs.b.offset, other);
        return result;
    }
    // The row of tiles `row` of the product, in the place of that of number `place`; a's offset is that of its step.
    TileRow keys_at(const Expr &offset, const Expr &row, const Expr &place) const {
        Bf16Product result = product;
        result.c.buffer = ahead;
        result.a.offset = offset;
        return {TileBlock(result),
                {cast<int64_t>(row), long_int(0)},
                {simplify(cast<int64_t>(place % kept_rows)), long_int(0)},
                simplify(product.pairs / tile_edge)};
    }
    Expr keys_of(const Expr &other) const { return in_step(product.a.offset, other); }
    TileRow values_at(const Expr &row) const {
        const TileBlock::At at = {cast<int64_t>(row), long_int(0)};
        return {TileBlock(outputs_in(step - 1)), at, at, simplify(outputs.pairs / tile_edge), false};
    }
    Expr next_step() const { return min(step + 1, loop->min + loop->extent - 1); }

    // Nothing else is made beside these tiles.
    Stmt outputs_of(const Expr &other) const { return matrix_tiles(outputs_in(other)); }
    Stmt with_tiles(const Stmt &stage) const {
        const Stmt body =
            with_product(stage.as<ProducerConsumer>()->body, [](const Bf16Product &of) { return matrix_tiles(of); });
        return ProducerConsumer::make_produce(names.product, body);
    }
    Stmt first_keys(const Expr &other) const {
        const TileRow row = keys_at(keys_of(other), 0, 0);
        return row.whole([](const Expr &) { return Evaluate::make(0); });
    }
    Stmt choose_reference() const {
        const Stmt &stage = stages.of(names.reference);
        const Stmt before = ReadAs(names.maxima, Float(32).min()).mutate(stage);
        KeyLoop maxima(with_logits(stages.of(names.maxima)));
        maxima.before.push_back(part_of(maxima.loop, 0, constant(maxima.loop->extent) / rows_of_keys));
        const Stmt of_first_keys = ReplaceArray(names.product, ahead, [](const Expr &index) {
                                       return index;
                                   }).mutate(Block::make(maxima.before));
        return Block::make(before,
                           IfThenElse::make(names.may_keep && !references_fit(), Block::make(of_first_keys, stage)));
    }
    // Whether every row has a reference, one to keep.
    Expr references_fit() const {
        Expr all = const_true();
        for (const Store *store : stores_to(names.reference + ".0", stages.of(names.reference))) {
            const int lanes = store->value.type().lanes();
            const Type bits = Int(32, lanes);
            const Expr stored = Load::make(store->value.type(), store->name, store->index, Buffer<>(), Parameter(),
                                           const_true(lanes), ModulusRemainder());
            const Expr size = reinterpret(bits, stored) & make_const(bits, 0x7fffffff);
            all = all && VectorReduce::make(VectorReduce::And, size < make_const(bits, names.huge_reference), 1);
        }
        return all;
    }

    Stmt behind_tiles() const {
        return Block::make(IfThenElse::make(has_outputs_before(), outputs_of(step - 1)),
                           IfThenElse::make(names.may_keep, first_keys(next_step())));
    }
    Stmt beside_tiles() const {
        return IfThenElse::make(exact_sums.loop->extent > 0, beside_tiles(true), beside_tiles(false));
    }
    // exactly: with the exact sums.
    Stmt beside_tiles(bool exactly) const {
        std::vector<Stmt> all = sums.before;
        all.insert(all.end(), exact_sums.before.begin(), exact_sums.before.end());
        all.push_back(largest.set(make_zero(UInt(16))));
        all.push_back(is_static
                          ? IfThenElse::make(has_outputs_before(), with_start(outputs, all_periods(true, exactly)),
                                             all_periods(false, exactly))
                          : with_start(outputs, periods_of_loops(exactly), has_outputs_before()));
        return Block::make(all);
    }

    // The rows of tiles of a period, in their order.
    std::vector<TileRow> rows_of_tiles(const Expr &period, bool has_outputs) const {
        const int keys = rows_of_keys / periods, values = constant(rows_of_values) / periods;
        std::vector<TileRow> rows;
        int done = 0;
        for (int row = 1; row <= keys; row++) {
            const Expr number = period * keys + row;
            if (row < keys) {
                rows.push_back(keys_at(keys_of(step), number, number));
            } else {
                rows.push_back(last_of_period(number, simplify(period == periods - 1)));
            }
            while (has_outputs && done * keys < row * values && (done + 1) * keys <= row * values) {
                rows.push_back(values_at(period * values + done++));
            }
        }
        return rows;
    }
    // The row of tiles `number` of this step, or the first of the next one.
    TileRow last_of_period(const Expr &number, const Expr &is_next) const {
        return keys_at(select(is_next, keys_of(next_step()), keys_of(step)), select(is_next, 0, number), number);
    }

    // All periods where sizes come at run time: half of the weights are made beside the tiles of the next keys, the
    // others beside those of the outputs.
    Stmt periods_of_loops(bool exactly) const {
        const std::string name = unique_name("tile_period"), row = unique_name("tile_row");
        const Expr period = Variable::make(Int(32), name), of_values = Variable::make(Int(32), row);
        const int pairs = weights.num_pairs() / periods, half = pairs / 2;
        const TileRow keys = last_of_period(period + 1, period == periods - 1), values = values_at(of_values);
        const Expr first = period * rows_of_values / periods, end = (period + 1) * rows_of_values / periods,
                   rows = select(has_outputs_before(), end - first, 0);
        const auto part = [&](int from, int count, const Expr &number, const Expr &of) {
            const Expr most = (count + of - 1) / of, before = most * number;
            return weights.pairs(period * pairs + from + before, clamp(count - before, 0, most), exactly);
        };
        const auto beside_keys = [&](const Expr &p) { return part(0, half, p, keys.steps); };
        const auto beside_values = [&](const Expr &p) {
            return part(half, pairs - half, (of_values - first) * values.steps + p, rows * values.steps);
        };
        const Stmt of_outputs = serial_loop(row, first, rows, values.whole(beside_values));
        const Stmt alone = Block::make(IfThenElse::make(!has_outputs_before(), asked_rows.burst(period)),
                                       IfThenElse::make(rows == 0, part(half, pairs - half, 0, 1)));
        const Stmt of_sums = weights.sums_of(period * pairs, pairs);
        return serial_loop(name, 0, periods, Block::make({keys.whole(beside_keys), of_outputs, alone, of_sums}));
    }

    // All periods where sizes are known. has_outputs: there is a step before.
    Stmt all_periods(bool has_outputs, bool exactly) const {
        const PeriodLoop period_loop{unique_name("tile_period"), periods};
        const BesideTiles beside{weights, rows_of_keys, has_outputs ? nullptr : &asked_rows, exactly};
        return in_line(rows_of_tiles(period_loop.period(), has_outputs), period_loop, beside);
    }

    // The arrays live as long as the loop; the weights twice.
    Stmt with_arrays(Stmt body) const {
        body = largest.lives_in(body);
        for (const Allocate *array : stages.arrays) {
            std::vector<Expr> extents = array->extents;
            if (array->name == names.weights) extents.emplace_back(2);
            body = Allocate::make(array->name, array->type, array->memory_type, extents, array->condition, body);
        }
        return Allocate::make(ahead, Float(32), MemoryType::Register, {product_elements}, const_true(), body);
    }
};

}  // namespace

Stmt PipelineTiles::visit(const For *op) {
    if (op->name != names.loop) return IRMutator::visit(op);
    found++;
    return Pipeline(names, op).lowered();
}

}  // namespace heed
