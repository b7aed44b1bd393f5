#pragma once
// A line of memory that is asked for.

#include <string>

#include "Halide.h"

namespace heed {

constexpr int line_bytes = 64;

// The line of the byte `offset` (64 bits) of a buffer: into L2; one that will be written, into L1, for this core alone.
Halide::Internal::Stmt prefetch_line(const std::string &buffer, const Halide::Expr &offset, bool is_written = false);

}  // namespace heed
