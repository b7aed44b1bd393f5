#pragma once
// RoPE of rows: pairs (a, b) become (a cos - b sin, b cos + a sin), with sin times `direction`: 1, or -1 to rotate
// back.
//
// A row of rotary_dim elements is seen as (n, part): pair n, part 0 = a, part 1 = b. Half-split pairs have strides
// (1, rotary_dim / 2), interleaved ones (2, 1).

#include <functional>

#include "Halide.h"

namespace heed {

// Pairs in floats, in terms of the variables of a row.
struct RotatedRows {
    std::vector<Halide::Var> row;
    std::function<Halide::Expr(Halide::Expr n, int part)> x;
    std::function<Halide::Expr(Halide::Expr n)> cos, sin;
    Halide::Expr direction;
    // x * y + z rounded once, on devices: whatever else a kernel does, its rotations have the same bits.
    std::function<Halide::Expr(Halide::Expr x, Halide::Expr y, Halide::Expr z)> fused;
};

struct Rotation {
    Halide::Var n{"n"}, part{"part"};
    Halide::Func rotated{"rotated"};  // (n, part, row)

    explicit Rotation(const RotatedRows &in) {
        using Halide::Expr;
        std::vector<Halide::Var> at = {n, part};
        at.insert(at.end(), in.row.begin(), in.row.end());
        Expr a = in.x(n, 0), b = in.x(n, 1), c = in.cos(n), s = in.sin(n) * in.direction;
        rotated(at) = in.fused ? mux(part, {in.fused(a, c, -(b * s)), in.fused(b, c, a * s)})
                               : mux(part, {a * c - b * s, b * c + a * s});
    }
};

}  // namespace heed
