#pragma once
// Indices on the device.

#include "Halide.h"

namespace heed::cuda {

// a / b of Int(32) of which none is negative, b not 0: cheaper than signed ones.
inline Halide::Expr quotient(const Halide::Expr &a, const Halide::Expr &b) {
    return Halide::cast<int32_t>(Halide::cast<uint32_t>(a) / Halide::cast<uint32_t>(b));
}

// To an element of a tensor, UInt(64).
inline Halide::Expr element_bytes(const Halide::Expr &index, const Halide::Expr &stride, int size) {
    return Halide::cast<uint64_t>(Halide::cast<int64_t>(index) * Halide::cast<int64_t>(stride) *
                                  Halide::cast<int64_t>(size));
}

}  // namespace heed::cuda
