#include "generators/lowering/bf16_tiles.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "generators/common/serial_loop.h"
#include "generators/lowering/tile_block.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

struct TileLoop {
    std::string name;
    Expr index = Expr();

    explicit TileLoop(std::string of_loop)
        : name(std::move(of_loop)), index(cast<int64_t>(Variable::make(Int(32), name))) {}
    Stmt around(const Expr &extent, const Stmt &body) const { return serial_loop(name, 0, extent, body); }
};

// Tile by tile: the sums of the block before are stored, those of this one started.
Stmt first_step_after(const TileBlock &block, const TileBlock::At &before, const TileBlock::At &at) {
    return block.step(at, long_int(0),
                      [&](int i, int j) { return Block::make(block.store(before, i, j), block.start(at, i, j)); });
}

// Sums of any number of steps: a loop over them in one over blocks of tiles.
Stmt plain_tiles(const Bf16Product &product) {
    const TileBlock block(product);
    const TileLoop m(unique_name("tile_m")), n(unique_name("tile_n")), p(tile_steps_of(product.c.buffer));
    const TileBlock::At at = {m.index, n.index};
    const Expr all = product.pairs / tile_edge, kept = product.kept_steps > 0 ? min(all, product.kept_steps) : all;
    Stmt steps = p.around(kept, block.step(at, p.index));
    if (product.kept_steps > 0) {
        const TileLoop more(streamed_steps_of(product.c.buffer));
        steps = Block::make(steps, more.around(all - kept, block.streamed_step(at, cast<int64_t>(kept) + more.index)));
    }
    const Stmt body = block.live_in(Block::make({block.start(at), steps, block.store(at)}));
    return m.around(block.blocks_m(), n.around(block.blocks_n(), body));
}

// Along the pairs. More of them, and an unknown number, are a loop.
constexpr int most_unrolled_steps = 10;

bool are_few(const Expr &steps) {
    const auto known = as_const_int(steps);
    return known && *known <= most_unrolled_steps;
}

// Sums of at least one step. The unit would wait for the sums of one block before it starts the next one: 621 instead
// of 512 cycles for two blocks of four steps. Instead a tile is stored where the next block first needs its register.
Stmt woven_tiles(const Bf16Product &product, const Expr &steps) {
    const TileBlock block(product);
    const TileLoop next(unique_name("tile_block"));
    const int blocks_n = block.blocks_n();
    const Expr blocks = simplify(block.blocks_m() * blocks_n);
    auto at = [&](const Expr &number) {
        return TileBlock::At{number / long_int(blocks_n), number % long_int(blocks_n)};
    };
    auto rest_of_steps = [&](const Expr &number, std::vector<Stmt> before) {
        if (are_few(steps)) {
            for (int p = 1; p < *as_const_int(steps); p++) before.push_back(block.step(at(number), long_int(p)));
        } else {
            const TileLoop p(unique_name("tile_p"));
            before.push_back(p.around(steps - 1, block.step(at(number), p.index + long_int(1))));
        }
        return Block::make(before);
    };
    const TileBlock::At first = at(long_int(0)), here = at(next.index + long_int(1));
    const Stmt woven = rest_of_steps(next.index + long_int(1), {first_step_after(block, at(next.index), here)});
    return block.live_in(
        Block::make({rest_of_steps(long_int(0), {block.start(first), block.step(first, long_int(0))}),
                     next.around(simplify(blocks - 1), woven), block.store(at(simplify(cast<int64_t>(blocks - 1))))}));
}

Stmt without_lets(const Stmt &s) {
    const auto *let = s.as<LetStmt>();
    return let ? without_lets(substitute(let->name, let->value, let->body)) : s;
}

// Loops over products with tiles of their own, of what clears them and of what adds to them, become one.
Stmt in_one_loop(const Block *stages, const MakeTiles &make) {
    const Stmt first = without_lets(stages->first), rest = without_lets(stages->rest);
    const auto *clear = first.as<For>(), *add = rest.as<For>();
    if (!clear || !add || !equal(clear->min, add->min) || !equal(clear->extent, add->extent)) return Stmt();
    const Stmt cleared = substitute(clear->name, Variable::make(Int(32), add->name), clear->body);
    const Stmt body = with_product(Block::make(cleared, add->body), make);
    if (!body.defined()) return Stmt();
    return with_body(add, body);
}

}  // namespace

Stmt with_start(const Bf16Product &product, const Stmt &tiles, const Expr &is_added) {
    const Stmt starts = Store::make(product.started, 1, 0, Parameter(), const_true(), {});
    return LetStmt::make(product.has_started.as<Variable>()->name, hold_something(product.started),
                         Block::make(tiles, IfThenElse::make(is_added, starts)));
}

Stmt matrix_tiles(const Bf16Product &product, bool has_steps) {
    if (product.elsewhere.defined()) {
        Bf16Product here = product;
        here.elsewhere = Expr();
        Bf16Product there = here;
        there.a = product.other_a;
        return IfThenElse::make(product.elsewhere, matrix_tiles(there, has_steps), matrix_tiles(here, has_steps));
    }
    const Expr steps = simplify(product.pairs / tile_edge);
    const Stmt tiles = has_steps || are_few(steps) ? woven_tiles(product, steps) : plain_tiles(product);
    return product.started.empty() ? tiles : with_start(product, tiles);
}

Stmt with_product(const Stmt &body, const MakeTiles &make) {
    if (const auto *let = body.as<LetStmt>()) return with_product(substitute(let->name, let->value, let->body), make);
    if (const auto *consume = body.as<ProducerConsumer>()) {
        Stmt inner = with_product(consume->body, make);
        return inner.defined() ? ProducerConsumer::make(consume->name, consume->is_producer, inner) : inner;
    }
    const auto *block = body.as<Block>();
    if (std::optional<Bf16Product> product = recognised(block ? block->first : body)) {
        product->adds = true;
        return block ? Block::make(make(*product), block->rest) : make(*product);
    }
    if (!block) return Stmt();
    const auto *more = block->rest.as<Block>();
    std::optional<Bf16Product> product = recognised(more ? more->first : block->rest);
    if (product && clears(block->first, &*product)) {
        Stmt result = make(*product);
        return more ? Block::make(result, more->rest) : result;
    }
    if (Stmt loop = in_one_loop(block, make); loop.defined()) return loop;
    Stmt rest = with_product(block->rest, make);
    return rest.defined() ? Block::make(block->first, rest) : rest;
}

Stmt LowerBf16Tiles::visit(const ProducerConsumer *op) {
    if (op->is_producer) {
        const bool has_steps = std::find(with_steps.begin(), with_steps.end(), op->name) != with_steps.end();
        const auto make = [&](Bf16Product product) {
            if (product.adds && product.c.buffer == sums.sums) product.set_started(sums.started);
            product.kept_steps = kept_steps;
            return matrix_tiles(product, has_steps);
        };
        if (Stmt body = with_product(op->body, make); body.defined()) {
            found++;
            return ProducerConsumer::make_produce(op->name, body);
        }
    }
    return IRMutator::visit(op);
}

}  // namespace heed
