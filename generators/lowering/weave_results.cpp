#include "generators/lowering/weave_results.h"

#include <utility>

#include "generators/common/serial_loop.h"
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

// The results of the tile before, a row after each step, the others after the last one.
class RowsBeside : public IRMutator {
public:
    RowsBeside(const std::vector<std::string> &steps, const For *rows, Expr count)
        : steps(steps), rows(rows), count(std::move(count)) {}

    bool found_all() const { return found == steps.size(); }

private:
    using IRMutator::visit;
    const std::vector<std::string> &steps;
    const For *const rows;
    const Expr count;
    size_t found = 0;
    Expr first = 0, done = 0;  // the first row of the last loop that was found, and the one after its last

    // A loop may be there twice, with and without what it asks for.
    Stmt visit(const For *op) override {
        const bool again = found > 0 && op->name == steps[found - 1];
        if (!again && (found_all() || op->name != steps[found])) return IRMutator::visit(op);
        if (!again) {
            found++;
            first = done;
            done = min(first + op->extent, count);
        }
        const Expr row = first + (Variable::make(Int(32), op->name) - op->min);
        const Stmt body = Block::make(op->body, part_of(rows, row, clamp(count - row, 0, 1)));
        const Stmt loop = with_body(op, body);
        return found_all() ? Block::make(loop, part_of(rows, done, count - done)) : loop;
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
    if (weave.found_all()) found++;
    const Stmt all = Block::make(with_body(op, body), IfThenElse::make(op->extent > 0, rows_of(last)));
    const auto *array = tile.array.as<Allocate>();
    return Allocate::make(sums, array->type, array->memory_type, array->extents, array->condition, all);
}

}  // namespace heed
