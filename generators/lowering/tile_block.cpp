#include "generators/lowering/tile_block.h"

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

Expr whole_tile() { return Ramp::make(0, 1, tile_edge * tile_edge); }

std::vector<Expr> tile_names(const char *name, int count) {
    std::vector<Expr> names;
    for (int n = 0; n < count; n++) names.push_back(Variable::make(pairs_type, unique_name(name)));
    return names;
}

Stmt named(const Expr &variable, const Expr &value, const Stmt &body) {
    return LetStmt::make(variable.as<Variable>()->name, value, body);
}

Expr first_row(int high, const Expr &m, int i) { return (m * long_int(high) + long_int(i)) * long_int(tile_edge); }

Expr first_column(int wide, const Expr &n, int j) {
    return (n * long_int(wide) + long_int(j)) * long_int(tile_row_bytes);
}

}  // namespace

Stmt SumTile::set(const Expr &value) const {
    return Store::make(name, value, whole_tile(), Parameter(), const_true(tile_edge * tile_edge), ModulusRemainder());
}

Stmt SumTile::clear() const { return set(tile_intrinsic(sums_type, "tile_zero", {})); }

Expr SumTile::get() const {
    return Load::make(sums_type, name, whole_tile(), {}, {}, const_true(tile_edge * tile_edge), {});
}

Stmt SumTile::lives_in(const Stmt &body) const {
    return Allocate::make(name, sums_type, MemoryType::AMXTile, {1}, const_true(), body);
}

Stmt product_of_zeros() {
    const Expr sums = tile_intrinsic(sums_type, "tile_zero", {}), pairs = reinterpret(pairs_type, sums);
    return Evaluate::make(tile_intrinsic(sums_type, "tile_matmul", {short_int(tile_row_bytes), sums, pairs, pairs}));
}

TileBlock::TileBlock(const Bf16Product &product)
    : product(product), high(product.m_block / tile_edge % 2 == 0 ? 2 : 1) {
    wide = 4 / high;
    while (product.n / tile_edge % wide != 0) wide /= 2;
    sums.resize(high * wide);
}

Expr TileBlock::blocks_m() const { return simplify(product.m / (tile_edge * high)); }

Stmt TileBlock::start(const At &at, int i, int j) const {
    const SumTile &sum = sums[i * wide + j];
    const TileOperand &from = product.adds || !product.start ? product.c : *product.start;
    if (!product.adds && !product.start) return sum.clear();
    const Expr there = first_row(high, at.m, i) * from.stride + first_column(wide, at.n, j);
    std::vector<Expr> address = TileAt{from, there}.address();
    if (product.adds && !product.started.empty()) {
        // Else each row of the tile is the line of zeros.
        const std::vector<Expr> zeros = {Variable::make(Handle(), product.started), long_int(0), long_int(0)};
        for (size_t n = 0; n < zeros.size(); n++) address[n] = select(product.has_started, address[n], zeros[n]);
    }
    return sum.set(reinterpret(sums_type, tile_intrinsic(pairs_type, "tile_load", address)));
}

Stmt TileBlock::store(const At &at, int i, int j) const {
    const Expr offset = first_row(high, at.m, i) * product.c.stride + first_column(wide, at.n, j);
    return TileAt{product.c, offset}.store(sums[i * wide + j].get());
}

std::vector<Stmt> TileBlock::each(const OfTile &make) const {
    std::vector<Stmt> all;
    for (int j = 0; j < wide; j++) {
        for (int i = 0; i < high; i++) all.push_back(make(i, j));
    }
    return all;
}

Stmt TileBlock::start(const At &at) const {
    return Block::make(each([&](int i, int j) { return start(at, i, j); }));
}

Stmt TileBlock::store(const At &at) const {
    return Block::make(each([&](int i, int j) { return store(at, i, j); }));
}

Expr TileBlock::load_a(const At &at, const Expr &p, int i) const {
    return TileAt{product.a, first_row(high, at.m, i) * product.a.stride + p * product.a.next_pairs}.load();
}

Expr TileBlock::load_b(const At &at, const Expr &p, int j) const {
    return TileAt{product.b, first_column(wide, at.n, j) + p * product.b.next_pairs}.load();
}

Stmt TileBlock::multiply(int i, int j, const Expr &a_tile, const Expr &b_tile) const {
    const SumTile &sum = sums[i * wide + j];
    return sum.set(tile_intrinsic(sums_type, "tile_matmul", {short_int(tile_row_bytes), sum.get(), a_tile, b_tile}));
}

Stmt TileBlock::step(const At &at, const Expr &p, const OfTile &before, const OfTile &after) const {
    const std::vector<Expr> a_tiles = tile_names("tile_a", high);
    std::vector<Stmt> products;
    for (int j = 0; j < wide; j++) {
        const Expr b_tile = tile_names("tile_b", 1)[0];
        std::vector<Stmt> column_of_tiles;
        for (int i = 0; i < high; i++) {
            if (before) column_of_tiles.push_back(before(i, j));
            column_of_tiles.push_back(multiply(i, j, a_tiles[i], b_tile));
            if (after) column_of_tiles.push_back(after(i, j));
        }
        products.push_back(named(b_tile, load_b(at, p, j), Block::make(column_of_tiles)));
    }
    Stmt result = Block::make(products);
    for (int i = high - 1; i >= 0; i--) result = named(a_tiles[i], load_a(at, p, i), result);
    return result;
}

Stmt TileBlock::streamed_step(const At &at, const Expr &p) const {
    const std::vector<Expr> b_tiles = tile_names("tile_b", wide);
    std::vector<Stmt> products;
    for (int i = 0; i < high; i++) {
        const Expr a_tile = tile_names("tile_a", 1)[0];
        std::vector<Stmt> row_of_tiles;
        for (int j = 0; j < wide; j++) row_of_tiles.push_back(multiply(i, j, a_tile, b_tiles[j]));
        products.push_back(named(a_tile, load_a(at, p, i), Block::make(row_of_tiles)));
    }
    Stmt result = Block::make(products);
    for (int j = wide - 1; j >= 0; j--) result = named(b_tiles[j], load_b(at, p, j), result);
    return result;
}

Stmt TileBlock::clear() const {
    return Block::make(each([&](int i, int j) { return sums[i * wide + j].clear(); }));
}

Stmt TileBlock::live_in(Stmt body) const {
    for (const SumTile &sum : sums) body = sum.lives_in(body);
    return body;
}

}  // namespace heed
