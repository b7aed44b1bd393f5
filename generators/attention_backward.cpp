#include "attention_backward.h"

namespace heed {

using namespace Halide;

namespace {

// exp(x) of a weight, which is at most 1: by rounding x may be above 0. NaN stays NaN.
Expr weight_of(const Expr &x) {
    Expr positive = reinterpret<uint32_t>(x) - Expr(1u) < Expr(0x7f800000u);
    return exp2_nonpositive(select(positive, 0.f, x) * log2_e);
}

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

AttentionBackwardKernel::AttentionBackwardKernel(const BackwardTile &tile) : tile(tile) {
    auto dot = [&](Product &product, const ImageParam &rows, const ImageParam &lanes) {
        product.over = elements(lanes.dim(1).extent());
        const RVar element = product.over.x, chunk = product.over.y;
        Expr d = unsafe_promise_clamped(chunk * BackwardTile::chunk + element, 0, lanes.dim(1).extent() - 1);
        product.sum(j, i) += rows(element, i, chunk) * lanes(j, d);
    };
    dot(dots, q, k_lanes);
    dot(weight_dots, dout, v_lanes);
    scores(j, i) = dots.sum(j, i);
    weight_grads(j, i) = weight_dots.sum(j, i);
    define_grads();

    // 0 for who does not see it; one multiplication and addition in either case, so that both round alike.
    auto part = [&](const Expr &factor, const Expr &element) {
        return factor * select(careful != 0 && is_zero(factor), 0.f, element);
    };
    dv_tile.over = RDom(0, BackwardTile::queries, "over_rows_of_v");
    dk_tile.over = RDom(0, BackwardTile::queries, "over_rows_of_k");
    dq_tile.over = RDom(0, BackwardTile::keys, "over_keys");
    dv_tile.sum(c, j, x) += part(grads(j, dv_tile.over)[0], dout(c, dv_tile.over, x));
    dk_tile.sum(c, j, x) += part(grads(j, dk_tile.over)[1], q(c, dk_tile.over, x));
    dq_tile.sum(c, i, x) += part(grads(dq_tile.over, i)[1], k(c, dq_tile.over, x));
    dv(c, j, x) = dv_before(c, j, x) + dv_tile.sum(c, j, x);
    dk(c, j, x) = dk_before(c, j, x) + dk_tile.sum(c, j, x);
    dq(c, i, x) = dq_before(c, i, x) + dq_tile.sum(c, i, x);
    state_buffer_contract();
}

void AttentionBackwardKernel::define_grads() {
    Expr plain = form == backward_plain, key = first_key + j, row = first_query + i;
    Expr raw = scores(j, i) * scale;
    Expr capped = select(softcap > 0.f, soft_capped(raw, softcap), raw), tangent = capped / softcap;
    Expr added = select(has_bias != 0, bias(j, i), 0.f);
    Expr logit =
        capped + (added + alibi(slope, token_distance(key, row, position_offset), cast<uint8_t>(alibi_symmetric)));
    Expr visible = key >= first_visible(row, visible_begin) && key < end_visible(row, visible_end, kv_len) &&
                   (mask_form == no_mask || mask_allows(mask(j, i), mask_form)) && !is_negative_infinity(added);
    Expr seen = plain || visible;
    weights(j, i) = select(seen, weight_of(select(plain, raw, logit) - lse(i)), 0.f);
    Expr weight = weights(j, i);

    Expr element = first_element + cast<uint64_t>(i) * row_elements + cast<uint64_t>(j);
    const DropoutStream stream = DropoutStream::of(dropout_seed, dropout_offset);
    Expr word = philox_word(stream.seed_lo, stream.seed_hi, stream.offset_lo, stream.offset_hi, element);
    dropout(j, i) = select(dropout_keeps(word, dropout_threshold), dropout_scale, 0.f);
    Expr kept = select(form != backward_dropped, 1.f, dropout(j, i));
    Expr dropped = form == backward_dropped && is_zero(kept);
    Expr weight_grad = select(dropped, 0.f, weight_grads(j, i) * kept);
    Expr logit_grad = select(seen, weight * (weight_grad - delta(i)), 0.f);
    Expr score_grad = select(plain || softcap <= 0.f, logit_grad, logit_grad * (1.f - tangent * tangent));
    grads(j, i) = Tuple(select(dropped, 0.f, weight * kept), score_grad, logit_grad);
}

void AttentionBackwardKernel::state_buffer_contract() {
    for (const ImageParam &rows : {q, dout, dq_before}) chunks_of(rows, BackwardTile::queries);
    for (const ImageParam &rows : {k, dk_before, dv_before}) chunks_of(rows, BackwardTile::keys);
    for (const ImageParam &lanes : {k_lanes, v_lanes}) {
        lanes.dim(0).set_bounds(0, BackwardTile::keys);
        lanes.dim(1).set_min(0).set_stride(BackwardTile::keys);
    }
    for (const ImageParam &of_rows : {lse, delta}) of_rows.dim(0).set_bounds(0, BackwardTile::queries);
    block(mask);
    block(bias);
    std::vector<OutputImageParam> tiles = grads.output_buffers();  // of the extents of the first
    block(tiles[0]);
    for (OutputImageParam &output : tiles) output.dim(1).set_stride(BackwardTile::keys);
    for (const auto &[output, before] : {std::pair{&dq, &dq_before}, {&dk, &dk_before}, {&dv, &dv_before}}) {
        OutputImageParam buffer = output->output_buffer();
        chunks_of(buffer, output == &dq ? BackwardTile::queries : BackwardTile::keys);
        before->dim(2).set_extent(buffer.dim(2).extent());
    }
}

std::vector<Argument> AttentionBackwardKernel::arguments() const {
    return {q,
            dout,
            k,
            k_lanes,
            v_lanes,
            lse,
            delta,
            mask,
            bias,
            dq_before,
            dk_before,
            dv_before,
            form,
            careful,
            first_query,
            first_key,
            kv_len,
            visible_begin,
            visible_end,
            position_offset,
            mask_form,
            has_bias,
            alibi_symmetric,
            scale,
            softcap,
            slope,
            dropout_scale,
            dropout_seed,
            dropout_offset,
            dropout_threshold,
            first_element,
            row_elements};
}

}  // namespace heed
