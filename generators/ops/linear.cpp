#include "generators/ops/linear.h"

#include "generators/common/ceil_div.h"
#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/words.h"
#include "generators/ops/clip.h"

namespace heed {

using namespace Halide;

namespace {

// A tile of x: the steps of a row's block side by side, the rows of a block, the blocks.
void lay_out(Internal::Dimension steps, Internal::Dimension rows, Internal::Dimension blocks, const LinearTile &tile) {
    steps.set_bounds(0, linear_step_block).set_stride(1);
    rows.set_bounds(0, tile.rows).set_stride(linear_step_block);
    blocks.set_min(0).set_stride(linear_step_block * tile.rows);
}

}  // namespace

LinearRowsKernel::LinearRowsKernel(ElementType type, const LinearTile &tile)
    : LinearRowsArguments({type, type, tile.bf16_dots}), tile(tile), width(tile.bf16_dots ? 2 : 1),
      filled(0, x.dim(0).extent() / width, "filled"),
      half_filled(x.dim(0).extent() / width, x.dim(0).extent() % width, "half_filled") {
    const auto element = [&](const Expr &k) { return x(k, min(t * tile.rows + r, x.dim(1).extent() - 1)); };
    const auto pair = [](const Expr &word) { return reinterpret<int32_t>(word); };
    const auto at = [&](const Expr &k) { return tiles(k % linear_step_block, r, k / linear_step_block, t); };
    tiles(step, r, block, t) = tile.bf16_dots ? undef<int32_t>() : undef<float>();
    OutputImageParam buffer = tiles.output_buffer();
    const Expr full_blocks = x.dim(0).extent() / (width * linear_step_block);
    rest = RDom(0, linear_step_block, full_blocks, buffer.dim(2).extent() - full_blocks, "rest");
    tiles(rest.x, r, rest.y, t) = tile.bf16_dots ? Expr(0) : Expr(0.f);
    at(filled) = tile.bf16_dots ? pair(word_of_neighbours({element(2 * filled), element(2 * filled + 1)}))
                                : to_float(type, element(filled));
    if (tile.bf16_dots) at(half_filled) = pair(cast<uint32_t>(element(2 * half_filled)));
    x.dim(0).set_min(0);
    x.dim(1).set_min(0);
    lay_out(buffer.dim(0), buffer.dim(1), buffer.dim(2), tile);
    buffer.dim(3).set_min(0);
}

LinearKernel::LinearKernel(ElementType type, const LinearTile &tile)
    : LinearArguments({type, type, tile.bf16_dots}), tile(tile),
      over_k(0, linear_step_block, 0, x.dim(2).extent(), "over_k") {
    // Panels at once reach past the last one, and their sums go nowhere.
    Expr read_panel = tile.panels == 1 ? Expr(panel) : min(panel, weight.dim(2).extent() - 1);
    const auto add = [=](const Expr &so_far, const Expr &of_x, const Expr &of_weight) {
        return tile.bf16_dots ? bf16_dot(so_far, reinterpret<uint32_t>(of_weight), reinterpret<uint32_t>(of_x))
                              : so_far + of_x * to_float(type, of_weight);
    };
    define_sum({{lane, r, panel, t},
                before(lane, r, read_panel, t),
                x(over_k.x, r, over_k.y, t),
                weight(lane, over_k.y * linear_step_block + over_k.x, read_panel),
                add});
    Expr value = sum(c % tile.columns, row % tile.rows, c / tile.columns, row / tile.rows) + bias(c);
    out(c, row) = from_float(type, clipped(value, clip));

    OutputImageParam buffer = out.output_buffer();
    lay_out(x.dim(0), x.dim(1), x.dim(2), tile);
    x.dim(3).set_min(0);
    weight.dim(0).set_bounds(0, tile.columns);
    weight.dim(1).set_bounds(0, x.dim(2).extent() * linear_step_block).set_stride(tile.columns);
    weight.dim(2).set_min(0);
    before.dim(0).set_bounds(0, tile.columns).set_stride(1);
    for (int axis : {1, 2, 3}) before.dim(axis).set_min(0);
    bias.dim(0).set_min(0);
    buffer.dim(0).set_min(0);
    buffer.dim(1).set_min(0);
}

AttentionProductsKernel::AttentionProductsKernel(const LinearTile &tile)
    : AttentionProductsArguments({ElementType::f32, ElementType::f32, true}),
      over_k(0, linear_step_block, 0, x.dim(2).extent(), "over_k") {
    out(lane, r, panel, t) = 0.f;
    out(lane, r, panel, t) = bf16_dot(
        out(lane, r, panel, t), reinterpret<uint32_t>(weight(lane, over_k.y * linear_step_block + over_k.x, panel)),
        reinterpret<uint32_t>(x(over_k.x, r, over_k.y, t)));
    OutputImageParam buffer = out.output_buffer();
    x.dim(0).set_bounds(0, linear_step_block);
    x.dim(1).set_bounds(0, tile.rows);
    for (int axis : {2, 3}) x.dim(axis).set_min(0);
    weight.dim(0).set_bounds(0, tile.columns);
    weight.dim(1).set_bounds(0, x.dim(2).extent() * linear_step_block).set_stride(tile.columns);
    buffer.dim(0).set_bounds(0, tile.columns);
    buffer.dim(1).set_bounds(0, tile.rows);
    for (int axis : {2, 3}) buffer.dim(axis).set_min(0);
    weight.dim(2).set_min(0);
}

LinearInPlaceKernel::LinearInPlaceKernel(ElementType type, const LinearTile &tile, int pitch)
    : LinearInPlaceArguments({type, type, tile.bf16_dots}), tile(tile), width(tile.bf16_dots ? 2 : 1) {
    const Expr steps = x.dim(0).extent() / width, blocks = steps / in_place_block;
    over_blocks = RDom(0, in_place_block, 0, blocks, "over_blocks");
    over_rest = RDom(blocks * in_place_block, steps % in_place_block, "over_rest");
    const auto element = [&](const Expr &k) { return x(k, min(t * tile.rows + r, x.dim(1).extent() - 1)); };
    const auto with_pair = [&](const Expr &pair, const Expr &step) {
        return bf16_dot(sum(lane, r, panel, t), reinterpret<uint32_t>(weight(lane, step, panel)), pair);
    };
    sum(lane, r, panel, t) = 0.f;
    for (const Expr &k : {over_blocks.y * in_place_block + over_blocks.x, Expr(over_rest)}) {
        sum(lane, r, panel, t) = tile.bf16_dots ? with_pair(bf16_pair(element(2 * k), element(2 * k + 1)), k)
                                                : sum(lane, r, panel, t) + to_float(type, element(k)) *
                                                                               to_float(type, weight(lane, k, panel));
    }
    if (tile.bf16_dots) {
        over_half = RDom(steps, x.dim(0).extent() % width, "over_half");
        sum(lane, r, panel, t) = with_pair(cast<uint32_t>(element(2 * over_half)), over_half);
    }
    const Expr value = sum(c % tile.columns, row % tile.rows, c / tile.columns, row / tile.rows) + bias(c);
    out(c, row) = from_float(type, clipped(value, clip));

    OutputImageParam buffer = out.output_buffer();
    for (int axis : {0, 1}) x.dim(axis).set_min(0);
    weight.dim(0).set_bounds(0, tile.columns);
    weight.dim(1).set_min(0).set_stride(pitch);
    weight.dim(2).set_min(0);
    bias.dim(0).set_min(0);
    buffer.dim(0).set_min(0);
    buffer.dim(1).set_min(0);
}

}  // namespace heed
