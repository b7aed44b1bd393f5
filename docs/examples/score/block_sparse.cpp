// Block-sparse attention: a table says which blocks of 128 x 128 logits exist.
//   buffers: i32 table [rows, columns], 0 = the block is hidden; i32 columns
#include <heed/user_score.h>

namespace {

constexpr int edge = 128;

Halide::Expr exists(const heed::ScoreBuffers &in, const Halide::Expr &row, const Halide::Expr &column) {
    return in.i32(0, row * in.i32(1, 0) + column) != 0;
}

}  // namespace

heed::ScoreMod heed::score_mod() {
    ScoreMod mod;
    mod.buffers = {ScoreElement::i32, ScoreElement::i32};
    mod.visible = [](const ScorePlace &at, const ScoreBuffers &in) { return exists(in, at.p / edge, at.j / edge); };
    // Kernels have at most 128 rows and 256 keys in a block: two rows and three columns of the table.
    mod.block_visible = [](const ScoreBlock &block, const ScoreBuffers &in) {
        Halide::Expr any = Halide::Internal::const_false();
        for (const Halide::Expr &p : {block.first_p, block.last_p}) {
            for (int column = 0; column < 3; column++) {
                any = any || exists(in, p / edge, Halide::min(block.first_j / edge + column, block.last_j / edge));
            }
        }
        return any;
    };
    return mod;
}
