#pragma once
// Prefetches of rows that do not follow each other in memory: the prefetchers of the cache cannot guess them.

#include <string>
#include <vector>

#include "Halide.h"
#include "generators/lowering/prefetch_line.h"

namespace heed {

struct RowLines {
    std::string buffer;
    int rows;
    Halide::Expr lines;          // of a row, Int(32)
    Halide::Expr first, stride;  // bytes, of 64 bits: of row 0, and from a row to the next one
    Halide::Expr last;           // Int(32): rows after it are not asked for
    Wanted wanted;

    Halide::Internal::Stmt ask(const Halide::Expr &row, const Halide::Expr &line) const;
};

// Asks for one of `parts` parts of the rows up to the last one of each, at once. Where there are more parts than rows
// some are empty.
Halide::Internal::Stmt burst_of(const std::vector<RowLines> &all, const Halide::Expr &part, const Halide::Expr &parts);

// Several of them, in equal parts of their rows.
class AskedRows {
public:
    // Parts divide the rows of each.
    AskedRows(const std::vector<RowLines> &all, int parts);

    // Lines of a part, where their number is known, and the one of that number.
    int lines() const;
    Halide::Internal::Stmt line(const Halide::Expr &part, int number) const;
    // All lines of a part at once.
    Halide::Internal::Stmt burst(const Halide::Expr &part) const;

private:
    const std::vector<RowLines> &all;
    const int parts;
};

}  // namespace heed
