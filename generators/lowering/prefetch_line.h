#pragma once
// A line of memory that is asked for.

#include <string>

#include "Halide.h"

namespace heed {

constexpr int line_bytes = 64;

// Where a line is wanted: in L2; in L1; there, to be written by this core alone. Zen 5 brings all lines into L1 that it
// is asked for, but into L2 some three of four: which ones depends on their addresses alone.
enum class Wanted { in_l2, in_l1, to_write };

// Asks for the line of the byte `offset` (64 bits) of a buffer.
Halide::Internal::Stmt prefetch_line(const std::string &buffer, const Halide::Expr &offset,
                                     Wanted wanted = Wanted::in_l2);

}  // namespace heed
