#include "generators/lowering/weave_results.h"

#include <utility>

#include "generators/lowering/step_stages.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// The body of the loop over tiles: an array of sums, the stage that makes them, the loop over their rows.
struct TileOfResults {
    Stmt array, produce, rows;

    TileOfResults(const Stmt &body, const std::string &sums) : sums(sums) { read(body); }
    bool is_whole() const { return array.defined() && produce.defined() && rows.defined() && rows.as<For>(); }

private:
    const std::string &sums;

    void read(const Stmt &stmt) {
        if (const auto *let = stmt.as<LetStmt>()) return read(substitute(let->name, let->value, let->body));
        if (const auto *stage = stmt.as<ProducerConsumer>(); stage != nullptr && !stage->is_producer) {
            return read(stage->body);
        }
        if (const auto *allocate = stmt.as<Allocate>(); allocate != nullptr && allocate->name == sums) {
            array = stmt;
            return read(allocate->body);
        }
        if (const auto *block = stmt.as<Block>()) {
            const auto *stage = block->first.as<ProducerConsumer>();
            if (stage == nullptr || !stage->is_producer) return read(block->first);  // followed by a Free
            produce = stage->body;
            return read(block->rest);
        }
        rows = stmt;
    }
};

// The results of the tile before, a part after each step.
class RowsBeside : public IRMutator {
public:
    RowsBeside(const std::string &steps, const For *rows, const Expr &count) : steps(steps), rows(rows), count(count) {}

    int found = 0;

private:
    using IRMutator::visit;
    const std::string &steps;
    const For *const rows;
    const Expr count;

    // (A sum of no step leaves all of them.)
    Stmt visit(const For *op) override {
        if (op->name != steps) return IRMutator::visit(op);
        found++;
        const std::string name = unique_name("share");
        const Expr share = Variable::make(Int(32), name);
        const Expr first = (Variable::make(Int(32), op->name) - op->min) * share;
        const Stmt body = Block::make(op->body, part_of(rows, first, min(share, count - first)));
        const Expr done = min(share * op->extent, count);
        const Stmt all = Block::make(
            For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, body),
            part_of(rows, done, count - done));
        return LetStmt::make(name, (count + max(op->extent, 1) - 1) / max(op->extent, 1), all);
    }
};

}  // namespace

Stmt WeaveResults::visit(const For *op) {
    const bool is_it =
        op->name.size() >= tiles.size() && op->name.compare(op->name.size() - tiles.size(), tiles.size(), tiles) == 0;
    if (!is_it) return IRMutator::visit(op);
    const TileOfResults tile(op->body, sums);
    if (!tile.is_whole()) return IRMutator::visit(op);
    const Expr t = Variable::make(Int(32), op->name), last = op->min + op->extent - 1;
    const auto rows_of = [&](const Expr &which) { return substitute(op->name, which, tile.rows); };
    const Stmt before = rows_of(t - 1);
    const auto *loop = before.as<For>();
    const std::string count = unique_name("rows_before");
    RowsBeside weave(steps, loop, Variable::make(Int(32), count));
    const Stmt body = LetStmt::make(count, select(t > op->min, loop->extent, 0), weave.mutate(tile.produce));
    if (weave.found > 0) found++;
    const Stmt all =
        Block::make(For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, body),
                    IfThenElse::make(op->extent > 0, rows_of(last)));
    const auto *array = tile.array.as<Allocate>();
    return Allocate::make(sums, array->type, array->memory_type, array->extents, array->condition, all);
}

}  // namespace heed
