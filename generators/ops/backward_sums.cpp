#include "generators/ops/backward_sums.h"

#include "generators/common/ceil_div.h"

namespace heed {

using namespace Halide;

BackwardSumsDevice::BackwardSumsDevice(ElementType type, const Tile &tile, const ScoreMod &score_mod)
    : BackwardBlocks(type, {tile.products.rows, tile.columns}, score_mod), tile(tile), keys(make_side(backward_keys)),
      queries(make_side(backward_queries)) {
    for (Side *side : {&keys, &queries}) {
        fields = nullptr;
        define_met(*side);
        define_fields(side->fields, sequence);
        fields = &side->fields;
        define_rows(*side);
        define_products(*side);
        define_terms(*side);
        define_sums(*side);
        std::vector<Expr> sums;
        for (int n = 0; n < side->sums.outputs(); n++) {
            sums.push_back(value_of(side->sums, {side->all.x, side->all.y, side->all.z}, n));
        }
        add(stored(side->side, sums, side->all.x, side->all.y, side->all.z));
    }
}

BackwardSumsDevice::Side BackwardSumsDevice::make_side(BackwardSide side) const {
    const bool of_keys = side == backward_keys;
    const int chunks = tile.products.columns / tile.chunk;
    return {side,
            {TileProduct(tile.products, head_dim), TileProduct(tile.products, head_dim_v)},
            RDom(0, tile.chunk, 0, chunks, 0, ceil_div(of_keys ? max_q_len : max_kv_len, tile.products.columns), 0,
                 of_keys ? group() : Expr(1), "over"),
            RDom(0, tile.columns, 0, tile.products.rows, 0, num_blocks(side), "all")};
}

void BackwardSumsDevice::define_met(Side &of) const {
    const Block at = block_of(of.side, down);
    const Expr last = min(at.first_row + tile.products.rows, at.num_rows) - 1;
    const Expr begin = range_of(of.side, at, at.first_row).begin, end = range_of(of.side, at, last).end;
    const Expr steps = ceil_div(max(end - begin, 0), tile.products.columns);
    of.met(down) = Tuple(begin, select(at.first_row < at.num_rows, steps, 0));
}

void BackwardSumsDevice::define_rows(Side &of) const {
    const Block at = block_of(of.side, down);
    const bool of_keys = of.side == backward_keys;
    const Expr x = at.first_row + row, y = of.met(down)[0] + across * tile.products.columns + column;
    std::vector<Expr> of_x, of_y;
    const Row query = {at.sequence, of_keys ? other_head(of.side, at, h) : at.head, of_keys ? y : x};
    for (int n = 0; n < 2; n++) {
        const Expr to_x = rows(of_keys, n, at.sequence).row(at.sequence, at.head, x),
                   to_y = rows(!of_keys, n, at.sequence).row(at.sequence, other_head(of.side, at, h), y);
        of_x.push_back(select(x < at.num_rows, to_x, cast<uint64_t>(0)));
        of_y.push_back(select(y < at.num_other, to_y, cast<uint64_t>(0)));
    }
    for (const Expr &value : query_values(query)) (of_keys ? of_y : of_x).push_back(value);
    of.x_rows(row, down) = Tuple(of_x);
    of.y_rows(column, across, h, down) = Tuple(of_y);
}

void BackwardSumsDevice::define_products(Side &of) const {
    for (int n = 0; n < 2; n++) {
        TileProduct &product = of.products[static_cast<size_t>(n)];
        const Expr x = of.x_rows(product.row, down)[n], y = of.y_rows(product.column, across, h, down)[n];
        product.define_product({type, {down}, x, is_given(x)}, {type, {across, h, down}, y, is_given(y)},
                               {across, h, down});
    }
}

void BackwardSumsDevice::define_terms(Side &of) const {
    const Block at = block_of(of.side, down);
    const bool of_keys = of.side == backward_keys;
    const std::vector<Var> here = {column, row, across, h, down};
    of.dots(here) = Tuple(of.products[0].sum(here), of.products[1].sum(here));
    const Expr own = at.first_row + row, other = of.met(down)[0] + across * tile.products.columns + column;
    const Row query = {at.sequence, of_keys ? other_head(of.side, at, h) : at.head, of_keys ? other : own};
    const FuncRef of_query = of_keys ? of.y_rows(column, across, h, down) : of.x_rows(row, down);
    const Gradients found =
        gradients(of.weight, here, of.dots(here)[0], of.dots(here)[1], query,
                  Query({of_query[2], of_query[3], of_query[4], of_query[5]}), of_keys ? own : other);
    of.terms(here) = of_keys ? Tuple(found.score, found.weight) : Tuple(std::vector<Expr>{found.score});
}

void BackwardSumsDevice::define_sums(Side &of) const {
    const Block at = block_of(of.side, down);
    const bool of_keys = of.side == backward_keys;
    const int count = of_keys ? 2 : 1;
    std::vector<Expr> elements, zeros, sums;
    for (int n = 0; n < count; n++) {
        const Expr first = of.y_rows(chunk * tile.chunk + in_chunk, across, h, down)[n], at_d = at.first_column + d;
        const Expr exists = is_given(first) && at_d < rows(!of_keys, n, at.sequence).length;
        elements.push_back(to_float(type, load_at_if(exists, stored_type(type), first, at_d)));
        zeros.emplace_back(0.f);
    }
    of.y(d, in_chunk, chunk, across, h, down) = Tuple(elements);
    of.sums(d, row, down) = Tuple(zeros);
    const RDom &over = of.over;
    for (int n = 0; n < count; n++) {
        const Expr before = value_of(of.sums, {d, row, down}, n);
        const Expr term = value_of(of.terms, {over.y * tile.chunk + over.x, row, over.z, over.w, down}, n);
        const Expr element = value_of(of.y, {d, over.x, over.y, over.z, over.w, down}, n);
        sums.push_back(select(is_zero(term), before, fused_on_device(term, element, before)));
    }
    of.over.where(of.over.z < of.met(down)[1]);
    of.sums(d, row, down) = Tuple(sums);
}

}  // namespace heed
