#include "generators/attention/backward_tiles.h"

#include "generators/lowering/bf16_dots.h"

namespace heed {

using namespace Halide;

namespace {

using Block = BackwardTilesBlock;

// (column, row), dense.
template <typename Buffer>
void table(Buffer buffer, int columns) {
    buffer.dim(0).set_bounds(0, columns);
    buffer.dim(1).set_min(0).set_stride(columns);
}

// (column, row, chunk), dense.
template <typename Buffer>
void chunks(Buffer buffer, int columns, int rows) {
    table(buffer, columns);
    buffer.dim(1).set_extent(rows);
    buffer.dim(2).set_min(0).set_stride(columns * rows);
}

Expr pair_of(const Expr &word) { return reinterpret<uint32_t>(word); }

// (pair of elements, row).
void rows(ImageParam buffer, int num_rows) {
    buffer.dim(0).set_min(0);
    buffer.dim(1).set_bounds(0, num_rows).set_stride(buffer.dim(0).extent());
}

}  // namespace

AttentionBackwardTilesKernel::AttentionBackwardTilesKernel(const ScoreMod &score_mod)
    : BackwardLogits(Order::queries_first, score_mod) {
    const auto dot = [&](Func &sum, const ImageParam &words, const ImageParam &keys, const char *name) {
        RDom over(0, keys.dim(0).extent(), name);
        sum(i, j) = 0.f;
        sum(i, j) = bf16_dot(sum(i, j), pair_of(words(i, over)), pair_of(keys(over, j)));
    };
    dot(scores, q_words, k_rows, "over_q");
    dot(weight_grads, dout_words, v_rows, "over_dout");
    const Gradients found = gradients(scores(i, j), weight_grads(i, j));
    grads(i, j) = Tuple(to_bf16(found.weight), to_bf16(found.score), found.logit);
    grad_words(i, p) = bf16_pair(grads(i, 2 * p)[1], grads(i, 2 * p + 1)[1]);

    weight_pairs(p, j) = bf16_pair(grads(2 * p, j)[0], grads(2 * p + 1, j)[0]);
    grad_pairs(p, j) = bf16_pair(grads(2 * p, j)[1], grads(2 * p + 1, j)[1]);

    const auto product = [&](Func &sum, const ImageParam &pairs, const Func &of_queries, const char *name) {
        RDom over(0, Block::queries / 2, name);
        sum(c, j, x) = 0.f;
        sum(c, j, x) = bf16_dot(sum(c, j, x), pair_of(pairs(c, over, x)), of_queries(over, j));
    };
    product(dv_tile, dout_pairs, weight_pairs, "over_rows_of_v");
    product(dk_tile, q_pairs, grad_pairs, "over_rows_of_k");
    RDom over(0, Block::keys / 2, "over_keys");
    dq_tile(i, c, x) = 0.f;
    dq_tile(i, c, x) = bf16_dot(dq_tile(i, c, x), grad_words(i, over), pair_of(k_columns(over, c, x)));
    dv(c, j, x) = dv_before(c, j, x) + dv_tile(c, j, x);
    dk(c, j, x) = dk_before(c, j, x) + dk_tile(c, j, x);
    dq(i, c, x) = dq_before(i, c, x) + dq_tile(i, c, x);
    state_buffer_contract();
}

void AttentionBackwardTilesKernel::state_buffer_contract() {
    for (const ImageParam &words : {q_words, dout_words}) table(words, Block::queries);
    for (const ImageParam &pairs : {q_pairs, dout_pairs}) chunks(pairs, Block::chunk, Block::queries / 2);
    for (const ImageParam &of_keys : {k_rows, v_rows}) rows(of_keys, Block::keys);
    chunks(k_columns, Block::keys / 2, Block::chunk);
    q_words.dim(1).set_extent(k_rows.dim(0).extent());
    dout_words.dim(1).set_extent(v_rows.dim(0).extent());
    for (const ImageParam &of_rows : {lse, delta}) of_rows.dim(0).set_bounds(0, Block::queries);
    for (const ImageParam &tile : {mask, bias}) {
        table(tile, Block::queries);
        tile.dim(1).set_extent(Block::keys);
    }
    std::vector<OutputImageParam> tiles = grads.output_buffers();  // of the extents of the first
    table(tiles[0], Block::queries);
    tiles[0].dim(1).set_extent(Block::keys);
    for (OutputImageParam &output : tiles) output.dim(1).set_stride(Block::queries);
    const auto gradient = [](Func &output, const ImageParam &before, int columns, int num_rows) {
        OutputImageParam buffer = output.output_buffer();
        chunks(buffer, columns, num_rows);
        chunks(before, columns, num_rows);
        ImageParam(before).dim(2).set_extent(buffer.dim(2).extent());
    };
    gradient(dq, dq_before, Block::queries, Block::chunk);
    gradient(dk, dk_before, Block::chunk, Block::keys);
    gradient(dv, dv_before, Block::chunk, Block::keys);
}

}  // namespace heed
