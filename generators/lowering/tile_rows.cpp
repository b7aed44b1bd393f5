#include "generators/lowering/tile_rows.h"

#include <algorithm>
#include <utility>

#include "generators/common/serial_loop.h"
#include "generators/lowering/bf16_product.h"
#include "generators/lowering/step_stages.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

class RowsInLine {
public:
    RowsInLine(const std::vector<TileRow> &rows, const PeriodLoop &loop, const BesideTiles &beside)
        : rows(rows), loop(loop), beside(beside), period(loop.period()), is_loop(loop.periods > 1),
          pairs(beside.weights.num_pairs() / loop.periods), of_period(pairs * beside.weights.vectors_of_pair()),
          of_row(of_period / (beside.rows_of_keys / loop.periods)),
          lines(beside.asked_rows ? beside.asked_rows->lines() : 0), stores_product(is_loop && rows.back().of_product),
          rows_stored(stores_product ? 0 : 1) {
        for (const TileRow &row : rows) products += constant(row.steps) * row.block.tiles();
    }

    Stmt lowered() {
        if (is_loop) {
            for (const Stmt &store : rows.back().stores()) {
                pending.push_back(IfThenElse::make(period > 0, substitute(loop.name, period - 1, store)));
            }
        }
        for (const TileRow &row : rows) add(row);
        all.push_back(weights_until(of_period));
        Stmt body = Block::make(all);
        std::vector<Stmt> rest = rows.back().stores();
        if (is_loop) {
            body = serial_loop(loop.name, 0, loop.periods, body);
            body = Block::make(rows.back().block.clear(), body);
            for (Stmt &store : rest) store = substitute(loop.name, loop.periods - 1, store);
        }
        body = Block::make(body, Block::make(rest));
        for (const TileRow &row : rows) body = row.block.live_in(body);
        return body;
    }

private:
    const std::vector<TileRow> &rows;
    const PeriodLoop &loop;
    const BesideTiles &beside;
    const Expr period;
    const bool is_loop;
    const int pairs, of_period, of_row;  // pairs of keys of a period; vectors of weights, of a row of tiles
    const int lines;
    int products = 0;        // of tiles
    bool stores_product;     // whether `pending` is of the product
    int rows_stored;         // of the product, that of the first weights among them
    int done = 0, made = 0;  // products, vectors
    size_t stored = 0;       // of `pending`
    std::vector<Stmt> all, pending;

    Stmt weights_until(int end) {
        const int first = std::exchange(made, std::max(made, std::min(end, rows_stored * of_row)));
        return beside.weights.vectors(period * pairs, first, made, beside.exactly);
    }

    Stmt after_product() {
        const int before = done++;
        std::vector<Stmt> after{weights_until(done * of_period / products)};
        for (int line = before * lines / products; line < done * lines / products; line++) {
            after.push_back(beside.asked_rows->line(period, line));
        }
        return Block::make(after);
    }

    Stmt started(const TileRow &row, int i, int j) {
        const Stmt start = row.block.start(row.at, i, j);
        if (stored == pending.size()) return start;
        const Stmt both = Block::make(pending[stored++], start);
        if (stored == pending.size() && stores_product) rows_stored++;
        return both;
    }

    void add(const TileRow &row) {
        // Tiles take the place of those that come kept_rows before.
        if (stores_product) all.push_back(weights_until((rows_stored - kept_rows + 1) * of_row));
        stored = 0;
        const auto before = [&](int i, int j) { return started(row, i, j); };
        const auto after = [&](int, int) { return after_product(); };
        for (int p = 0; p < constant(row.steps); p++) {
            all.push_back(row.block.step(row.at, long_int(p), p == 0 ? before : TileBlock::OfTile(), after));
            if (stored < pending.size() && stores_product) rows_stored++;
            while (stored < pending.size()) all.push_back(pending[stored++]);
        }
        pending = row.stores();
        stores_product = row.of_product;
    }
};

}  // namespace

std::vector<Stmt> TileRow::stores() const {
    return block.each([&](int i, int j) { return block.store(stored_at, i, j); });
}

Stmt TileRow::whole(const std::function<Stmt(const Expr &step)> &after) const {
    const std::string name = unique_name("tile_p");
    const Expr p = Variable::make(Int(32), name);
    const Stmt all = serial_loop(name, 0, steps, Block::make(block.step(at, cast<int64_t>(p)), after(p)));
    return block.live_in(Block::make({block.start(at), all, block.store(stored_at)}));
}

Expr PeriodLoop::period() const { return periods > 1 ? Variable::make(Int(32), name) : Expr(0); }

Stmt in_line(const std::vector<TileRow> &rows, const PeriodLoop &loop, const BesideTiles &beside) {
    return RowsInLine(rows, loop, beside).lowered();
}

}  // namespace heed
