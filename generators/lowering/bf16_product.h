#pragma once
// Loops of a matrix product of bf16, recognised: what LowerBf16Tiles makes tiles of.

#include <optional>
#include <string>

#include "Halide.h"

namespace heed {

constexpr int tile_edge = 16;  // rows of a tile, and its columns of 32 bits
constexpr int tile_row_bytes = 4 * tile_edge;

inline Halide::Expr long_int(int64_t x) { return Halide::Internal::make_const(Halide::Int(64), x); }

// An operand in memory: the byte at `offset` of `buffer`, and the bytes from one row of a tile to the next. For a and b
// also the bytes from a tile to the next along the pairs.
struct TileOperand {
    std::string buffer;
    Halide::Expr offset, stride, next_pairs = Halide::Expr();
};

struct Bf16Product {
    int m_block = 0, n = 0;
    Halide::Expr m, pairs;  // m: one m_block or more
    TileOperand a, b, c;
    Halide::Expr elsewhere;  // undefined, or whether a is `other_a`
    TileOperand other_a;
    int kept_steps = 0;   // along the pairs: b's tiles of later ones come past the L1 cache, as a's do; 0: none of them
    bool adds = false;    // to what c holds, else to zero
    std::string started;  // empty, or an array: zeros, the first of them a flag, where c holds nothing yet (StartSums)
    Halide::Expr has_started;          // a name for whether it holds something
    std::optional<TileOperand> start;  // what c is cleared to, other than zero

    void set_started(const std::string &array) {
        started = array;
        has_started = Halide::Internal::Variable::make(Halide::Bool(), Halide::Internal::unique_name("has_started"));
    }
};

// The product that a nest of loops computes, where it is one that LowerBf16Tiles describes.
std::optional<Bf16Product> recognised(const Halide::Internal::Stmt &update);

// Whether loops clear what a product adds to: to zero, or to floats of another buffer, which become its start.
bool clears(const Halide::Internal::Stmt &loops, Bf16Product *product);

}  // namespace heed
