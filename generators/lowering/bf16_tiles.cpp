#include "generators/lowering/bf16_tiles.h"

#include <string>
#include <utility>
#include <vector>

#include "generators/lowering/bf16_dots.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

constexpr int edge = 16;  // rows of a tile, and its columns of 32 bits
constexpr int tile_row_bytes = 4 * edge;

Expr short_int(int x) { return make_const(Int(16), x); }
Expr long_int(int64_t x) { return make_const(Int(64), x); }

// An operand in memory: the byte at `offset` of `buffer`, and the bytes from one row of a tile to the next.
struct Operand {
    std::string buffer;
    Expr offset, stride;
};

struct Product {
    int m = 0, n = 0;
    Expr pairs;
    Operand a, b, c;
};

struct Loop {
    std::string name;
    Expr min, extent;
};

// The loops around one store, from the outermost; the store with all names of the nest resolved.
struct Nest {
    std::vector<Loop> loops;
    Expr index, value;
    std::string stored_to;

    bool read(const Stmt &s) {
        if (const auto *loop = s.as<For>()) {
            loops.push_back({loop->name, loop->min, loop->extent});
            return loop->for_type == ForType::Serial && read(loop->body);
        }
        if (const auto *let = s.as<LetStmt>()) return read(substitute(let->name, let->value, let->body));
        const auto *store = s.as<Store>();
        if (!store) return false;
        stored_to = store->name;
        index = substitute_in_all_lets(store->index);
        value = substitute_in_all_lets(store->value);
        return true;
    }

    Expr first(Expr of) const {
        for (const Loop &loop : loops) of = substitute(loop.name, loop.min, of);
        return of;
    }

    // What a step along a loop adds to an index, which is affine.
    Expr step(const Expr &of, const Loop &loop) const {
        return simplify(cast<int64_t>(first(substitute(loop.name, loop.min + 1, of)) - first(of)));
    }
    bool steps_by(int bytes, const Load *load, const Loop &loop) const {
        const auto known = as_const_int(step(load->index, loop));
        return known && *known * load->type.bytes() == bytes;
    }
};

class FirstLoad : public IRVisitor {
public:
    const Load *found = nullptr;

private:
    using IRVisitor::visit;
    void visit(const Load *op) override {
        if (!found) found = op;
    }
};

// A pair is one word of a buffer of words or two neighbours of a buffer of bf16, the first of which is its address.
const Load *address(const Expr &pair) {
    FirstLoad first;
    pair.accept(&first);
    return first.found;
}

bool recognise(const Stmt &update, Product &product) {
    Nest nest;
    if (!nest.read(update) || nest.loops.size() != 3) return false;
    const Expr b_pair = dot_operand(nest.value, 1), a_pair = dot_operand(nest.value, 2);
    if (!b_pair.defined()) return false;
    const Load *a = address(a_pair), *b = address(b_pair);
    if (!a || !b) return false;

    const Loop *along_m = nullptr, *along_n = nullptr, *along_p = nullptr;
    for (const Loop &loop : nest.loops) {
        const Expr step = nest.step(nest.index, loop);
        (is_const(step, 0) ? along_p : is_const(step, 1) ? along_n : along_m) = &loop;
    }
    if (!along_m || !along_n || !along_p || !nest.steps_by(4, b, *along_n) || !nest.steps_by(0, b, *along_m) ||
        !nest.steps_by(4, a, *along_p) || !nest.steps_by(0, a, *along_n)) {
        return false;
    }
    const auto m = as_const_int(along_m->extent), n = as_const_int(along_n->extent), p = as_const_int(along_p->extent);
    if (!m || !n || *m % edge != 0 || *n % edge != 0 || (p && *p % edge != 0)) return false;
    product.m = static_cast<int>(*m);
    product.n = static_cast<int>(*n);
    product.pairs = along_p->extent;
    auto operand = [&](const std::string &name, const Expr &index, const Loop &rows, int bytes) {
        return Operand{name, cast<int64_t>(nest.first(index)) * long_int(bytes),
                       nest.step(index, rows) * long_int(bytes)};
    };
    product.a = operand(a->name, a->index, *along_m, a->type.bytes());
    product.b = operand(b->name, b->index, *along_p, 4);
    product.c = operand(nest.stored_to, nest.index, *along_m, 4);
    return true;
}

const Type sums_type = Float(32, edge *edge), pairs_type = BFloat(16, 2 * edge * edge);

Expr tile_intrinsic(const Type &type, const char *name, const std::vector<Expr> &rest) {
    std::vector<Expr> args{short_int(edge), short_int(tile_row_bytes)};
    args.insert(args.end(), rest.begin(), rest.end());
    return Call::make(type, name, args, Call::Intrinsic);
}

// A tile of an operand, `offset` bytes on.
struct TileAt {
    const Operand &operand;
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
        return Store::make(name, value, everything(), Parameter(), const_true(edge * edge), ModulusRemainder());
    }
    Expr get() const { return Load::make(sums_type, name, everything(), {}, {}, const_true(edge * edge), {}); }
    Stmt lives_in(const Stmt &body) const {
        return Allocate::make(name, sums_type, MemoryType::AMXTile, {1}, const_true(), body);
    }

private:
    std::string name = unique_name("tile_sum");
    static Expr everything() { return Ramp::make(0, 1, edge * edge); }
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

Stmt tiles(const Product &product) {
    const int high = product.m / edge % 2 == 0 ? 2 : 1;
    int wide = 4 / high;
    while (product.n / edge % wide != 0) wide /= 2;
    const TileLoop m("tile_m"), n("tile_n"), p("tile_p");
    auto row = [&](int i) { return (m.index * long_int(high) + long_int(i)) * long_int(edge); };
    auto column = [&](int j) { return (n.index * long_int(wide) + long_int(j)) * long_int(tile_row_bytes); };
    auto of_a = [&](int i) {
        return TileAt{product.a, row(i) * product.a.stride + p.index * long_int(tile_row_bytes)}.load();
    };
    auto of_b = [&](int j) {
        return TileAt{product.b, column(j) + p.index * long_int(edge) * product.b.stride}.load();
    };

    std::vector<SumTile> sums(high * wide);
    std::vector<Expr> a_tiles;
    for (int i = 0; i < high; i++) a_tiles.push_back(Variable::make(pairs_type, unique_name("tile_a")));
    std::vector<Stmt> clear, multiply, store;
    for (int j = 0; j < wide; j++) {
        const Expr b_tile = Variable::make(pairs_type, unique_name("tile_b"));
        std::vector<Stmt> column_of_tiles;
        for (int i = 0; i < high; i++) {
            const SumTile &sum = sums[i * wide + j];
            clear.push_back(sum.set(tile_intrinsic(sums_type, "tile_zero", {})));
            column_of_tiles.push_back(sum.set(
                tile_intrinsic(sums_type, "tile_matmul", {short_int(tile_row_bytes), sum.get(), a_tiles[i], b_tile})));
            store.push_back(TileAt{product.c, row(i) * product.c.stride + column(j)}.store(sum.get()));
        }
        multiply.push_back(named(b_tile, of_b(j), Block::make(column_of_tiles)));
    }
    Stmt step = Block::make(multiply);
    for (int i = high - 1; i >= 0; i--) step = named(a_tiles[i], of_a(i), step);
    Stmt block = Block::make({Block::make(clear), p.around(product.pairs / edge, step), Block::make(store)});
    for (const SumTile &sum : sums) block = sum.lives_in(block);
    return m.around(product.m / edge / high, n.around(product.n / edge / wide, block));
}

// The product starts from zero: its tiles stand for the loops that clear c as well.
Stmt lowered_stage(const Stmt &body) {
    if (const auto *let = body.as<LetStmt>()) return lowered_stage(substitute(let->name, let->value, let->body));
    if (const auto *consume = body.as<ProducerConsumer>()) {
        Stmt inner = lowered_stage(consume->body);
        return inner.defined() ? ProducerConsumer::make(consume->name, consume->is_producer, inner) : inner;
    }
    const auto *clear_and_rest = body.as<Block>();
    if (!clear_and_rest) return Stmt();
    const auto *more = clear_and_rest->rest.as<Block>();
    Product product;
    if (!recognise(more ? more->first : clear_and_rest->rest, product)) return Stmt();
    Stmt result = tiles(product);
    return more ? Block::make(result, more->rest) : result;
}

}  // namespace

Stmt LowerBf16Tiles::visit(const ProducerConsumer *op) {
    if (op->is_producer) {
        if (Stmt body = lowered_stage(op->body); body.defined()) {
            found++;
            return ProducerConsumer::make_produce(op->name, body);
        }
    }
    return IRMutator::visit(op);
}

}  // namespace heed
