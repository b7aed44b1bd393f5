#pragma once
// How a block of threads multiplies tiles (ops/product.h): tiles of x and w in shared memory, sums in registers.

#include "generators/ops/product.h"

namespace heed {

// Variables of a stage over a tile of results: those of the thread's own results, innermost first.
struct Dealt {
    std::vector<Halide::VarOrRVar> own;
    Halide::VarOrRVar thread;
};
using Deal = Dealt (*)(Halide::Stage stage, const Halide::VarOrRVar &column, const Halide::VarOrRVar &row);
// As LowerTileProducts has them; a warp has 32 rows, of low fragments 16.
Dealt in_fragments(Halide::Stage stage, const Halide::VarOrRVar &column, const Halide::VarOrRVar &row);
Dealt in_low_fragments(Halide::Stage stage, const Halide::VarOrRVar &column, const Halide::VarOrRVar &row);
// Like these, for columns of codes: a lane has four neighbours of each 16.
Dealt in_fragments_of_codes(Halide::Stage stage, const Halide::VarOrRVar &column, const Halide::VarOrRVar &row);
Dealt in_low_fragments_of_codes(Halide::Stage stage, const Halide::VarOrRVar &column, const Halide::VarOrRVar &row);
// The rows alone, `eights` of 8 a warp: each is one of four lanes', which `quad` numbers.
Dealt rows_in_fragments(Halide::Stage stage, const Halide::VarOrRVar &row, const Halide::VarOrRVar &quad, int eights);
// 4 x 4 of a thread.
Dealt in_squares(Halide::Stage stage, const Halide::VarOrRVar &column, const Halide::VarOrRVar &row);
// The same in each 64 columns: 4 rows a thread, and 8.
Dealt in_square_blocks(Halide::Stage stage, const Halide::VarOrRVar &column, const Halide::VarOrRVar &row);
Dealt in_tall_blocks(Halide::Stage stage, const Halide::VarOrRVar &column, const Halide::VarOrRVar &row);
// A thread has 4 x 4 in each 128 columns; a warp has 8 rows, and 64 of these columns.
Dealt in_wide_blocks(Halide::Stage stage, const Halide::VarOrRVar &column, const Halide::VarOrRVar &row);

// Each of several parts has threads of its own, one after the other.
Dealt in_parts(Halide::Stage stage, const Dealt &dealt, const Halide::VarOrRVar &part, int parts);

void order(Halide::Stage stage, std::vector<Halide::VarOrRVar> loops, const std::vector<Halide::VarOrRVar> &outer);
void unroll(Halide::Stage stage, const std::vector<Halide::VarOrRVar> &loops);
// A thread computes its own results one after the other, without loops: for each step of `inner` all of them. outer:
// loops around threads.
void deal_out(Halide::Stage stage, const Dealt &dealt, const std::vector<Halide::VarOrRVar> &inner = {},
              const std::vector<Halide::VarOrRVar> &outer = {});

// Sums, (column, row, which tile), of a tile of so many columns and rows: over a step, and over steps. What a thread
// has of a step is left as loops, which the result names. parts: of the third coordinate, each of which has threads of
// its own.
std::vector<Halide::VarOrRVar> schedule_sum(Halide::Func &sum, const Halide::LoopLevel &at, std::pair<int, int> extents,
                                            Deal deal, const std::vector<Halide::VarOrRVar> &in_step,
                                            std::vector<Halide::VarOrRVar> steps, int parts = 1);
std::vector<Halide::VarOrRVar> schedule_sum(TileProduct &product, const Halide::LoopLevel &at, Deal deal);
std::vector<Halide::VarOrRVar> schedule_sum(TileProduct &product, const Halide::LoopLevel &at,
                                            std::pair<int, int> extents, Deal deal);

// Elements of so many lines of x_tile in registers, those that a thread has of fragments; `eights` of 8 rows a warp.
// ordered: x_ordered, in shared memory, of x_own.
void schedule_own(TileProduct &product, Halide::Func &own, const Halide::LoopLevel &at, int lines, int eights);
void schedule_ordered(TileProduct &product, const Halide::LoopLevel &at, int lines, int eights);

// A tile of x or w, of `lines` rows, by so many threads. Copies: a thread copies 16 bytes at a time. Rows are padded,
// so that rows that are read at once are in different banks; in panels (cuda/warpgroup.h) to whole ones of these.
enum class Rows { padded, in_panels };
void schedule_copies(TileProduct &product, Halide::Func &tile, int lines, int threads, Rows rows = Rows::padded);
// Elements of a row in panels.
int row_in_panels(int elements);
// The copies of a tile's chunks, so many of each line. Neighbours copy neighbouring chunks; of a line with more than
// 16, or no power of two of them, a thread copies several, which have one address.
void deal_copies(Halide::Func &tile, const Halide::Var &in_chunk, const Halide::Var &chunk, const Halide::Var &line,
                 int chunks, int lines, int threads);
// Floats: rows vary fastest, padded, and a thread reads four of them at once; it uses `own` in a row.
void schedule_floats(TileProduct &product, Halide::Func &tile, int lines, int threads, int own = 4);

// Shared memory that a tile of x or w takes; of elements of so many bytes.
int shared_bytes_of(const ProductTile &tile, int lines, int bytes = 2);

}  // namespace heed
