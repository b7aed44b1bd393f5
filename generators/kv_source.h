#pragma once
// From a key index to memory: how k and v are read, and how rows of any length become rows of whole vectors.

#include <functional>
#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

// One of k and v. Contiguous storage: (d, kv_head, position, batch), any strides but the innermost.
struct KvSource {
    Halide::Func rows;
    Halide::Expr capacity;  // positions that the buffer holds; at least 1 whenever a key is read

    // Element d of key `position`, which the caller knows to lie in [0, capacity): the plan and execute have validated
    // kv_len against the capacity and the kernel reads a private copy of it.
    Halide::Expr trusted(const Halide::Expr &d, const Halide::Expr &position, const Halide::Expr &kv_head,
                         const Halide::Expr &batch) const;

    // The same for a position that may lie outside; another key of the buffer is read instead.
    Halide::Expr clamped(const Halide::Expr &d, const Halide::Expr &position, const Halide::Expr &kv_head,
                         const Halide::Expr &batch) const;
};

// A copy of rows with zeros behind their end, so that consumers may read whole vectors and read nothing outside a row.
// `args` are the coordinates of the copy, args[0] being the element; `element(d)` is the element to copy.
struct PaddedRows {
    Halide::Func rows;
    Halide::RDom over_d;

    explicit PaddedRows(const std::string &name) : rows(name) {}
    void define(const std::vector<Halide::Var> &args, const Halide::Expr &row_length,
                const std::function<Halide::Expr(Halide::Expr)> &element);
};

}  // namespace heed
