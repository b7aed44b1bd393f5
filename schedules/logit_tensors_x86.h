#pragma once
// Masks and biases of blocks whose rows are lanes: vectors of keys of each row, transposed in squares.

#include "schedules/task_schedule.h"

namespace heed {

class LogitTensorsSchedule : TaskSchedule {
public:
    using TaskSchedule::TaskSchedule;

    void biases(BlockChain &ch);  // of a chain that has them
    void masks(BlockChain &ch);   // what rows see of the keys of a chain that has a mask

private:
    // Vectors of rows of `keys` keys.
    Halide::Func &by_tiles(Halide::Func &f, int keys, const BlockChain &ch);
    // Squares that are transposed in a loop over the keys of f: of whole blocks read where they are, of others, whose
    // keys may end within a vector, from rows that are copied before.
    void squares(Halide::Func &f, TransposedTiles &tiles, const Halide::Var &loop, Halide::Func &rows,
                 const BlockChain &ch);
    void by_squares(Halide::Func &f, TransposedTiles &tiles, Halide::Func &rows, const BlockChain &ch);
    // Two squares side by side: a dense bias of bf16 is transposed as one square of words, any other one square after
    // the other.
    void by_pairs(BlockChain &ch);
    // Where keys are neighbours in memory, rows of a square that is read in place are registers.
    void read_dense(Halide::Func &f, Halide::Func &rows, const BlockChain &ch, const Halide::Expr &on,
                    const Halide::Expr &dense);
};

}  // namespace heed
