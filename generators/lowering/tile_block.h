#pragma once
// Tile registers of a product of bf16: what LowerBf16Tiles and PipelineTiles put together.

#include <functional>
#include <string>
#include <vector>

#include "generators/lowering/bf16_product.h"

namespace heed {

// A tile register that a loop updates.
class SumTile {
public:
    Halide::Internal::Stmt set(const Halide::Expr &value) const;
    Halide::Internal::Stmt clear() const;
    Halide::Expr get() const;
    Halide::Internal::Stmt lives_in(const Halide::Internal::Stmt &body) const;

private:
    std::string name = Halide::Internal::unique_name("tile_sum");
};

// A product of tiles of zeros: it keeps the unit at work and changes nothing.
Halide::Internal::Stmt product_of_zeros();

// high x wide tiles of sums and their operands, at block (m, n) of such blocks.
class TileBlock {
public:
    explicit TileBlock(const Bf16Product &product);

    struct At {
        Halide::Expr m, n;
    };
    using OfTile = std::function<Halide::Internal::Stmt(int i, int j)>;

    Halide::Expr blocks_m() const;
    int blocks_n() const { return product.n / tile_edge / wide; }

    Halide::Internal::Stmt start(const At &at, int i, int j) const;
    Halide::Internal::Stmt store(const At &at, int i, int j) const;
    // In the order in which a step first uses them.
    std::vector<Halide::Internal::Stmt> each(const OfTile &make) const;
    Halide::Internal::Stmt start(const At &at) const;
    Halide::Internal::Stmt store(const At &at) const;

    // The products of one step along the pairs. Before and after each of them comes what `before` and `after` make.
    Halide::Internal::Stmt step(const At &at, const Halide::Expr &p, const OfTile &before = nullptr,
                                const OfTile &after = nullptr) const;
    // The same products. All tiles of b are loaded before those of a, which tells load_streams_past_l1() (tile_hints.h)
    // that b streams, too.
    Halide::Internal::Stmt streamed_step(const At &at, const Halide::Expr &p) const;
    int tiles() const { return static_cast<int>(sums.size()); }
    Halide::Internal::Stmt clear() const;
    Halide::Internal::Stmt live_in(Halide::Internal::Stmt body) const;

private:
    const Bf16Product product;
    const int high;
    int wide = 1;
    std::vector<SumTile> sums;

    Halide::Expr load_a(const At &at, const Halide::Expr &p, int i) const;
    Halide::Expr load_b(const At &at, const Halide::Expr &p, int j) const;
    Halide::Internal::Stmt multiply(int i, int j, const Halide::Expr &a_tile, const Halide::Expr &b_tile) const;
};

}  // namespace heed
