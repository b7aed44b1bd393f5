#include "generators/attention/backward.h"

namespace heed {

using namespace Halide;

namespace {

// All elements of rows in chunks.
RDom elements(const Expr &count) {
    RDom over(0, BackwardTile::chunk, 0, (count + BackwardTile::chunk - 1) / BackwardTile::chunk, "over_elements");
    over.where(over.y * BackwardTile::chunk + over.x < count);
    return over;
}

template <typename Buffer>
void chunks_of(Buffer buffer, int num_rows) {
    buffer.dim(0).set_bounds(0, BackwardTile::chunk);
    buffer.dim(1).set_bounds(0, num_rows).set_stride(BackwardTile::chunk);
    buffer.dim(2).set_min(0).set_stride(BackwardTile::chunk * num_rows);
}

template <typename Buffer>
void block(Buffer buffer) {
    buffer.dim(0).set_bounds(0, BackwardTile::keys);
    buffer.dim(1).set_bounds(0, BackwardTile::queries);
    buffer.dim(1).set_stride(BackwardTile::keys);
}

}  // namespace

AttentionBackwardKernel::AttentionBackwardKernel(const BackwardTile &tile, const ScoreMod &score_mod)
    : BackwardLogits(Order::keys_first, score_mod), tile(tile) {
    auto dot = [&](Product &product, const ImageParam &rows, const ImageParam &lanes) {
        product.over = elements(lanes.dim(1).extent());
        const RVar element = product.over.x, chunk = product.over.y;
        Expr d = unsafe_promise_clamped(chunk * BackwardTile::chunk + element, 0, lanes.dim(1).extent() - 1);
        product.sum(j, i) += rows(element, i, chunk) * lanes(j % BackwardTile::chunk, d, j / BackwardTile::chunk);
    };
    dot(dots, q, k_lanes);
    dot(weight_dots, dout, v_lanes);
    scores(j, i) = dots.sum(j, i);
    weight_grads(j, i) = weight_dots.sum(j, i);
    const Gradients found = gradients(scores(j, i), weight_grads(j, i));
    grads(j, i) = Tuple(found.weight, found.score, found.logit);

    // 0 for who does not see it; one multiplication and addition in either case, so that both round alike.
    auto part = [&](const Expr &factor, const Expr &element) {
        return factor * select(hides_nonfinite != 0 && is_zero(factor), 0.f, element);
    };
    dv_tile.over = RDom(0, num_rows, "over_rows_of_v");
    dk_tile.over = RDom(0, num_rows, "over_rows_of_k");
    dq_tile.over = RDom(0, num_keys, "over_keys");
    dv_tile.sum(c, j, x) += part(grads(j, dv_tile.over)[0], dout(c, dv_tile.over, x));
    dk_tile.sum(c, j, x) += part(grads(j, dk_tile.over)[1], q(c, dk_tile.over, x));
    dq_tile.sum(c, i, x) += part(grads(dq_tile.over, i)[1], k(c, dq_tile.over, x));
    dv(c, j, x) = dv_before(c, j, x) + dv_tile.sum(c, j, x);
    dk(c, j, x) = dk_before(c, j, x) + dk_tile.sum(c, j, x);
    dq(c, i, x) = dq_before(c, i, x) + dq_tile.sum(c, i, x);
    state_buffer_contract();
}

void AttentionBackwardKernel::state_buffer_contract() {
    for (const ImageParam &rows : {q, dout, dq_before}) chunks_of(rows, BackwardTile::queries);
    for (const ImageParam &rows : {k, dk_before, dv_before}) chunks_of(rows, BackwardTile::keys);
    for (const ImageParam &lanes : {k_lanes, v_lanes}) {
        lanes.dim(0).set_bounds(0, BackwardTile::chunk);
        lanes.dim(1).set_min(0).set_stride(BackwardTile::chunk);
        lanes.dim(2).set_bounds(0, BackwardTile::keys / BackwardTile::chunk);
    }
    for (const ImageParam &of_rows : {lse, delta}) of_rows.dim(0).set_bounds(0, BackwardTile::queries);
    block(mask);
    block(bias);
    // What is written has the extents of the tile, in whole register tiles.
    std::vector<OutputImageParam> tiles = grads.output_buffers();  // of the bounds of the first
    tiles[0].dim(0).set_min(0);
    tiles[0].dim(1).set_min(0);
    for (OutputImageParam &output : tiles) output.dim(1).set_stride(BackwardTile::keys);
    for (const auto &[output, before] : {std::pair{&dq, &dq_before}, {&dk, &dk_before}, {&dv, &dv_before}}) {
        OutputImageParam buffer = output->output_buffer();
        buffer.dim(0).set_bounds(0, BackwardTile::chunk);
        buffer.dim(1).set_min(0).set_stride(BackwardTile::chunk);
        buffer.dim(2).set_min(0).set_stride(before->dim(2).stride());
        before->dim(2).set_extent(buffer.dim(2).extent());
    }
}

}  // namespace heed
