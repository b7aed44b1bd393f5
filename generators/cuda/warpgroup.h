#pragma once
// Products of a warpgroup, four warps of which each has 16 of 64 rows (PTX ISA, wgmma.mma_async; sm_90 alone). Sums are
// registers of the kernel's PTX with numbers: `scores` of the first product, `sums` of the second; of 64 x N elements a
// thread has N / 2, number 4 n + i of columns 8 n .. 8 n + 7 as a C fragment has them (intrinsics.h). So are `weights`,
// which the second product multiplies: no instruction may make them between the begin of products and their end.
//
// Matrices in shared memory are panels of 64 columns of 16 bits, one after the other: a row of a panel is 128 bytes,
// and its chunk of 16 bytes number c is at place c ^ (row % 8), so that eight rows are in different banks (the 128-byte
// swizzle). A panel begins at a multiple of 1024 bytes.

#include <map>
#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

using Halide::Expr;

constexpr int panel_columns = 64, panel_row_bytes = 128;

// Which chunk of a matrix of `rows` rows chunk `chunk` of row `row` is, in shared memory.
Expr chunk_in_panels(const Expr &row, const Expr &chunk, int rows);

// Where a product finds a matrix: UInt(64). `next_panel`: bytes from a panel to the next, where a product needs more
// than one of columns that are not its terms.
Expr matrix_descriptor(const Expr &address, int next_panel);

// scores = a b^T, or more of it, over 16 terms: both matrices are in shared memory, their rows over the terms.
Expr multiply_scores(ElementType type, int columns, const Expr &a, const Expr &b, bool first);
// sums += a b over 16 terms; a: A fragments of the four warps, `weights` of these terms; b: rows over the columns.
Expr multiply_sums(ElementType type, int columns, int first_term, const Expr &b);
// scores = a b, or more of it, with these a and b: of up to 64 columns.
Expr multiply_counts(ElementType type, int columns, int first_term, const Expr &b);
// A thread goes on while its products are computed, in the order in which it began them.
Expr begin_products();   // registers that the next ones read or add to have been written
Expr commit_products();  // those since the last commit are a group
Expr wait_products(
    int groups);  // until only the last 0 or 1 groups are under way: no register of theirs is touched till then

Expr score(int i);
Expr sum(int i);
Expr set_sum(int i, const Expr &value);
Expr set_weights(int i, const Expr &pair);  // 4 k + r: register r of the A fragment of terms 16 k .. 16 k + 15

// What this thread wrote to shared memory may be read by products, after the barrier that follows.
Expr copies_for_products();

// By name, as intrinsic_templates(): apart from those, since only kernels of warpgroups need them and they take 22 ms.
// And the declaration of the registers that they name.
const std::map<std::string, std::string> &warpgroup_templates();
std::string warpgroup_registers();

}  // namespace heed::cuda
