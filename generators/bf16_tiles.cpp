#include "bf16_tiles.h"

#include <string>
#include <utility>
#include <vector>

#include "bf16_dots.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

constexpr int edge = 16;  // rows of a tile, and its columns of 32 bits
constexpr int tile_row_bytes = 4 * edge;

// An operand in memory: the byte at `offset` of `buffer`, and the bytes from one row of a tile to the next.
struct Operand {
    std::string buffer;
    Expr offset;
    int64_t stride = 0;
};

struct Product {
    int m = 0, n = 0, pairs = 0;
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

    // What a step along a loop adds to an index, which is affine; -1 where that is no constant.
    int64_t step(const Expr &of, const Loop &loop) const {
        Expr second = first(substitute(loop.name, loop.min + 1, of));
        const auto difference = as_const_int(simplify(second - first(of)));
        return difference ? *difference : -1;
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
        const int64_t step = nest.step(nest.index, loop);
        (step == 0 ? along_p : step == 1 ? along_n : along_m) = &loop;
    }
    if (!along_m || !along_n || !along_p) return false;
    const int64_t c_m = nest.step(nest.index, *along_m), b_p = nest.step(b->index, *along_p),
                  a_m = nest.step(a->index, *along_m), a_bytes = a->type.bytes();
    if (nest.step(b->index, *along_n) != 1 || nest.step(b->index, *along_m) != 0 || b->type.bytes() != 4 ||
        nest.step(a->index, *along_p) * a_bytes != 4 || nest.step(a->index, *along_n) != 0 || c_m < 0 || b_p < 0 ||
        a_m < 0) {
        return false;
    }
    std::pair<const Loop *, int *> extents[] = {
        {along_m, &product.m}, {along_n, &product.n}, {along_p, &product.pairs}};
    for (auto [loop, extent] : extents) {
        const auto known = as_const_int(loop->extent);
        if (!known || *known % edge != 0) return false;
        *extent = static_cast<int>(*known);
    }
    auto bytes = [&](const Expr &index, int64_t size) { return cast<int64_t>(nest.first(index)) * Expr(size); };
    product.a = {a->name, bytes(a->index, a_bytes), a_m * a_bytes};
    product.b = {b->name, bytes(b->index, 4), b_p * 4};
    product.c = {nest.stored_to, bytes(nest.index, 4), c_m * 4};
    return true;
}

// One block of tiles: values of tile registers are named by lets, in the order of their instructions.
class TileBlock {
public:
    Expr zero() { return let(intrinsic(sums, "tile_zero", {})); }
    Expr load(const Operand &from, const Expr &offset) {
        return let(intrinsic(pairs, "tile_load", {base(from), from.offset + offset, Expr(from.stride)}));
    }
    Expr multiplied(const Expr &sum, const Expr &a, const Expr &b) {
        return let(intrinsic(sums, "tile_matmul", {short_int(tile_row_bytes), sum, a, b}));
    }
    void store(const Operand &to, const Expr &offset, const Expr &sum) {
        stores.push_back(
            Evaluate::make(intrinsic(Int(32), "tile_store", {base(to), to.offset + offset, Expr(to.stride), sum})));
    }
    Stmt stmt() const {
        Stmt s = Block::make(stores);
        for (auto it = lets.rbegin(); it != lets.rend(); ++it) s = LetStmt::make(it->first, it->second, s);
        return s;
    }

private:
    const Type sums = Float(32, edge *edge), pairs = BFloat(16, 2 * edge * edge);
    std::vector<std::pair<std::string, Expr>> lets;
    std::vector<Stmt> stores;

    static Expr short_int(int x) { return make_const(Int(16), x); }
    static Expr base(const Operand &operand) { return Variable::make(Handle(), operand.buffer); }
    static Expr intrinsic(const Type &type, const char *name, std::vector<Expr> rest) {
        std::vector<Expr> args{short_int(edge), short_int(tile_row_bytes)};
        args.insert(args.end(), rest.begin(), rest.end());
        return Call::make(type, name, args, Call::Intrinsic);
    }
    Expr let(const Expr &value) {
        lets.emplace_back(unique_name("tile"), value);
        return Variable::make(value.type(), lets.back().first);
    }
};

Stmt tiles(const Product &product) {
    const int high = product.m / edge % 2 == 0 ? 2 : 1, wide = product.n / edge % (4 / high) == 0 ? 4 / high : 1;
    const std::string m_name = unique_name("tile_m"), n_name = unique_name("tile_n");
    const Expr m = cast<int64_t>(Variable::make(Int(32), m_name)), n = cast<int64_t>(Variable::make(Int(32), n_name));
    auto row = [&](int i) { return m * Expr(int64_t(high * edge)) + Expr(int64_t(i * edge)); };
    auto column = [&](int j) { return n * Expr(int64_t(wide * tile_row_bytes)) + Expr(int64_t(j * tile_row_bytes)); };

    TileBlock block;
    std::vector<Expr> sums;
    for (int i = 0; i < high * wide; i++) sums.push_back(block.zero());
    for (int p = 0; p < product.pairs; p += edge) {
        std::vector<Expr> b;
        for (int i = 0; i < high; i++) {
            const Expr a = block.load(product.a, row(i) * Expr(product.a.stride) + Expr(int64_t(4 * p)));
            for (int j = 0; j < wide; j++) {
                if (i == 0) b.push_back(block.load(product.b, column(j) + Expr(p * product.b.stride)));
                sums[i * wide + j] = block.multiplied(sums[i * wide + j], a, b[j]);
            }
        }
    }
    for (int i = 0; i < high; i++) {
        for (int j = 0; j < wide; j++) {
            block.store(product.c, row(i) * Expr(product.c.stride) + column(j), sums[i * wide + j]);
        }
    }
    auto loop = [](const std::string &name, int extent, const Stmt &body) {
        return For::make(name, 0, extent, ForType::Serial, Partition::Never, DeviceAPI::None, body);
    };
    return loop(m_name, product.m / edge / high, loop(n_name, product.n / edge / wide, block.stmt()));
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
            lowered++;
            return ProducerConsumer::make_produce(op->name, body);
        }
    }
    return IRMutator::visit(op);
}

}  // namespace heed
