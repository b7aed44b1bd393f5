#include "generators/lowering/bf16_tiles.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "generators/lowering/bf16_product.h"
#include "generators/lowering/weave_tiles.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

Expr short_int(int x) { return make_const(Int(16), x); }

const Type sums_type = Float(32, tile_edge *tile_edge), pairs_type = BFloat(16, 2 * tile_edge * tile_edge);

Expr tile_intrinsic(const Type &type, const char *name, const std::vector<Expr> &rest) {
    std::vector<Expr> args{short_int(tile_edge), short_int(tile_row_bytes)};
    args.insert(args.end(), rest.begin(), rest.end());
    return Call::make(type, name, args, Call::Intrinsic);
}

// A tile of an operand, `offset` bytes on.
struct TileAt {
    const TileOperand &operand;
    Expr offset;

    std::vector<Expr> address() const {
        return {Variable::make(Handle(), operand.buffer), operand.offset + offset, operand.stride};
    }
    Expr load() const { return tile_intrinsic(pairs_type, "tile_load", address()); }
    Stmt store(const Expr &sum) const {
        std::vector<Expr> args = address();
        args.push_back(sum);
        return Evaluate::make(tile_intrinsic(Int(32), "tile_store", args));
    }
};

// A tile register that a loop updates.
class SumTile {
public:
    Stmt set(const Expr &value) const {
        return Store::make(name, value, everything(), Parameter(), const_true(tile_edge * tile_edge),
                           ModulusRemainder());
    }
    Expr get() const {
        return Load::make(sums_type, name, everything(), {}, {}, const_true(tile_edge * tile_edge), {});
    }
    Stmt lives_in(const Stmt &body) const {
        return Allocate::make(name, sums_type, MemoryType::AMXTile, {1}, const_true(), body);
    }

private:
    std::string name = unique_name("tile_sum");
    static Expr everything() { return Ramp::make(0, 1, tile_edge * tile_edge); }
};

Stmt named(const Expr &variable, const Expr &value, const Stmt &body) {
    return LetStmt::make(variable.as<Variable>()->name, value, body);
}

struct TileLoop {
    std::string name;
    Expr index = Expr();

    explicit TileLoop(const char *prefix)
        : name(unique_name(prefix)), index(cast<int64_t>(Variable::make(Int(32), name))) {}
    Stmt around(const Expr &extent, const Stmt &body) const {
        return For::make(name, 0, extent, ForType::Serial, Partition::Never, DeviceAPI::None, body);
    }
};

// high x wide tiles of sums and their operands, at block (m, n) of such blocks.
class TileBlock {
public:
    explicit TileBlock(const Bf16Product &product)
        : product(product), high(product.m_block / tile_edge % 2 == 0 ? 2 : 1) {
        wide = 4 / high;
        while (product.n / tile_edge % wide != 0) wide /= 2;
        sums.resize(high * wide);
    }
    Expr blocks_m() const { return simplify(product.m / (tile_edge * high)); }
    int blocks_n() const { return product.n / tile_edge / wide; }

    struct At {
        Expr m, n;
    };
    Stmt start(const At &at) const {
        return for_all([&](int i, int j) { return start(at, i, j); });
    }
    Stmt store(const At &at) const {
        return for_all([&](int i, int j) { return store(at, i, j); });
    }

    // The products of one step along the pairs. `before` each first use of a sum tile comes what it makes.
    template <typename Before>
    Stmt step(const At &at, const Expr &p, const Before &before) const {
        std::vector<Expr> a_tiles;
        for (int i = 0; i < high; i++) a_tiles.push_back(Variable::make(pairs_type, unique_name("tile_a")));
        std::vector<Stmt> multiply;
        for (int j = 0; j < wide; j++) {
            const Expr b_tile = Variable::make(pairs_type, unique_name("tile_b"));
            std::vector<Stmt> column_of_tiles;
            for (int i = 0; i < high; i++) {
                const Stmt first = before(i, j);
                if (first.defined()) column_of_tiles.push_back(first);
                const SumTile &sum = sums[i * wide + j];
                column_of_tiles.push_back(sum.set(tile_intrinsic(
                    sums_type, "tile_matmul", {short_int(tile_row_bytes), sum.get(), a_tiles[i], b_tile})));
            }
            const Expr of_b = TileAt{product.b, column(at, j) + p * product.b.next_pairs}.load();
            multiply.push_back(named(b_tile, of_b, Block::make(column_of_tiles)));
        }
        Stmt result = Block::make(multiply);
        for (int i = high - 1; i >= 0; i--) {
            const Expr of_a = TileAt{product.a, row(at, i) * product.a.stride + p * product.a.next_pairs}.load();
            result = named(a_tiles[i], of_a, result);
        }
        return result;
    }
    Stmt step(const At &at, const Expr &p) const {
        return step(at, p, [](int, int) { return Stmt(); });
    }
    // Tile by tile: the sums of the block before are stored, those of this one started.
    Stmt first_step_after(const At &before, const At &at) const {
        return step(at, long_int(0), [&](int i, int j) { return Block::make(store(before, i, j), start(at, i, j)); });
    }
    Stmt live_in(Stmt body) const {
        for (const SumTile &sum : sums) body = sum.lives_in(body);
        return body;
    }

private:
    const Bf16Product &product;
    const int high;
    int wide = 1;
    std::vector<SumTile> sums;

    Expr row(const At &at, int i) const { return (at.m * long_int(high) + long_int(i)) * long_int(tile_edge); }
    Expr column(const At &at, int j) const { return (at.n * long_int(wide) + long_int(j)) * long_int(tile_row_bytes); }
    TileAt of(const TileOperand &operand, const At &at, int i, int j) const {
        return TileAt{operand, row(at, i) * operand.stride + column(at, j)};
    }
    Stmt start(const At &at, int i, int j) const {
        const SumTile &sum = sums[i * wide + j];
        if (product.adds) return sum.set(reinterpret(sums_type, of(product.c, at, i, j).load()));
        if (product.start) return sum.set(reinterpret(sums_type, of(*product.start, at, i, j).load()));
        return sum.set(tile_intrinsic(sums_type, "tile_zero", {}));
    }
    Stmt store(const At &at, int i, int j) const { return of(product.c, at, i, j).store(sums[i * wide + j].get()); }
    template <typename Make>
    Stmt for_all(const Make &make) const {
        std::vector<Stmt> all;
        for (int j = 0; j < wide; j++) {
            for (int i = 0; i < high; i++) all.push_back(make(i, j));
        }
        return Block::make(all);
    }
};

// Sums of any number of steps: a loop over them in one over blocks of tiles.
Stmt plain_tiles(const Bf16Product &product) {
    const TileBlock block(product);
    const TileLoop m("tile_m"), n("tile_n"), p("tile_p");
    const TileBlock::At at = {m.index, n.index};
    const Stmt steps = p.around(product.pairs / tile_edge, block.step(at, p.index));
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
Stmt woven_tiles(const Bf16Product &product, const Expr &steps, bool marks) {
    const TileBlock block(product);
    const TileLoop next("tile_block");
    const int blocks_n = block.blocks_n();
    const Expr rows = block.blocks_m(), blocks = simplify(rows * blocks_n);
    auto at = [&](const Expr &number) {
        return TileBlock::At{number / long_int(blocks_n), number % long_int(blocks_n)};
    };
    const auto mark = [&](const Expr &number, const Expr &p) {
        if (!marks) return Evaluate::make(0);
        const Expr in_row = number % long_int(blocks_n) * cast<int64_t>(steps) + p;
        return tile_step({cast<int>(at(number).m), cast<int>(in_row), steps * blocks_n, rows});
    };
    auto rest_of_steps = [&](const Expr &number, std::vector<Stmt> before) {
        before.push_back(mark(number, long_int(0)));
        const auto later = [&](const Expr &p) { return Block::make(block.step(at(number), p), mark(number, p)); };
        if (are_few(steps)) {
            for (int p = 1; p < *as_const_int(steps); p++) before.push_back(later(long_int(p)));
        } else {
            const TileLoop p("tile_p");
            before.push_back(p.around(steps - 1, later(p.index + long_int(1))));
        }
        return Block::make(before);
    };
    const TileBlock::At first = at(long_int(0)), here = at(next.index + long_int(1));
    const Stmt woven = rest_of_steps(next.index + long_int(1), {block.first_step_after(at(next.index), here)});
    return block.live_in(
        Block::make({rest_of_steps(long_int(0), {block.start(first), block.step(first, long_int(0))}),
                     next.around(simplify(blocks - 1), woven), block.store(at(simplify(cast<int64_t>(blocks - 1))))}));
}

Stmt tiles(const Bf16Product &product, bool marks) {
    const Expr steps = simplify(product.pairs / tile_edge);
    return marks || are_few(steps) ? woven_tiles(product, steps, marks) : plain_tiles(product);
}

Stmt without_lets(const Stmt &s) {
    const auto *let = s.as<LetStmt>();
    return let ? without_lets(substitute(let->name, let->value, let->body)) : s;
}

Stmt lowered_stage(const Stmt &body, bool marks);

// Loops over products with tiles of their own, of what clears them and of what adds to them, become one.
Stmt lowered_in_loop(const Block *stages, bool marks) {
    const Stmt first = without_lets(stages->first), rest = without_lets(stages->rest);
    const auto *clear = first.as<For>(), *add = rest.as<For>();
    if (!clear || !add || !equal(clear->min, add->min) || !equal(clear->extent, add->extent)) return Stmt();
    const Stmt cleared = substitute(clear->name, Variable::make(Int(32), add->name), clear->body);
    const Stmt body = lowered_stage(Block::make(cleared, add->body), marks);
    if (!body.defined()) return Stmt();
    return For::make(add->name, add->min, add->extent, add->for_type, add->partition_policy, add->device_api, body);
}

// Tiles of a product that starts from zero replace the loops that clear c as well.
Stmt lowered_stage(const Stmt &body, bool marks) {
    if (const auto *let = body.as<LetStmt>()) return lowered_stage(substitute(let->name, let->value, let->body), marks);
    if (const auto *consume = body.as<ProducerConsumer>()) {
        Stmt inner = lowered_stage(consume->body, marks);
        return inner.defined() ? ProducerConsumer::make(consume->name, consume->is_producer, inner) : inner;
    }
    const auto *block = body.as<Block>();
    if (std::optional<Bf16Product> product = recognised(block ? block->first : body)) {
        product->adds = true;
        return block ? Block::make(tiles(*product, marks), block->rest) : tiles(*product, marks);
    }
    if (!block) return Stmt();
    const auto *more = block->rest.as<Block>();
    std::optional<Bf16Product> product = recognised(more ? more->first : block->rest);
    if (product && clears(block->first, &*product)) {
        Stmt result = tiles(*product, marks);
        return more ? Block::make(result, more->rest) : result;
    }
    if (Stmt loop = lowered_in_loop(block, marks); loop.defined()) return loop;
    Stmt rest = lowered_stage(block->rest, marks);
    return rest.defined() ? Block::make(block->first, rest) : rest;
}

}  // namespace

Stmt LowerBf16Tiles::visit(const ProducerConsumer *op) {
    if (op->is_producer) {
        const bool marks = std::find(marked.begin(), marked.end(), op->name) != marked.end();
        if (Stmt body = lowered_stage(op->body, marks); body.defined()) {
            found++;
            return ProducerConsumer::make_produce(op->name, body);
        }
    }
    return IRMutator::visit(op);
}

}  // namespace heed
