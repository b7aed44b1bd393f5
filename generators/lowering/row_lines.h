#pragma once
// Rows in memory that are asked for before they are needed, where other rows lie between them, so that the prefetchers
// of the cache do not follow.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

struct RowLines {
    std::string buffer;
    int rows;
    Halide::Expr lines;          // of a row, Int(32)
    Halide::Expr first, stride;  // bytes, of 64 bits: of row 0, and from a row to the next one
    bool is_written;

    // Line `line` of row `row`.
    Halide::Internal::Stmt ask(const Halide::Expr &row, const Halide::Expr &line) const;
    // `count` rows from `begin` on, at once.
    Halide::Internal::Stmt ask_for_rows(const Halide::Expr &begin, int count) const;
};

// All rows at once.
Halide::Internal::Stmt ask_for_all(const std::vector<RowLines> &rows);

}  // namespace heed
