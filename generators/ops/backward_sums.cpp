#include "generators/ops/backward_sums.h"

#include "generators/common/ceil_div.h"
#include "generators/lowering/carried.h"

namespace heed {

using namespace Halide;

namespace {

// A 64-bit value between bounds, in 32 bits.
Expr between(const Expr &x, const Expr &least, const Expr &most) { return cast<int32_t>(max(min(x, most), least)); }

// Value n of a Func of one or several.
Expr value_of(const Func &f, const std::vector<Expr> &at, int n) { return f.outputs() == 1 ? Expr(f(at)) : f(at)[n]; }

}  // namespace

BackwardSumsDevice::BackwardSumsDevice(ElementType type, const Tile &tile, const std::vector<BackwardSide> &of_sides)
    : BackwardScores(type), tile(tile), type(type) {
    for (const BackwardSide side : of_sides) sides.push_back(make_side(side));
    for (Side &side : sides) {
        fields = nullptr;
        define_met(side);
        std::vector<Expr> all_fields;
        for (int n = 0; n < sequence_padding; n++) {
            all_fields.push_back(field(static_cast<SequenceField>(n), sequence));
        }
        side.fields(sequence) = Tuple(all_fields);
        fields = &side.fields;
        define_rows(side);
        define_products(side);
        if (tile.in_fragments) {
            define_stats(side);
            define_terms_of_fragments(side);
            define_sums_of_fragments(side);
            define_doubts(side);
        } else {
            define_terms(side);
            define_sums(side);
        }
        add(stored(side));
    }
}

BackwardSumsDevice::Side BackwardSumsDevice::make_side(BackwardSide side) const {
    const bool of_keys = side == backward_keys;
    const Expr own = of_keys ? max_kv_len : max_q_len, others = of_keys ? max_q_len : max_kv_len;
    const Expr heads = of_keys ? num_kv_heads : num_heads, columns = of_keys ? max(head_dim, head_dim_v) : head_dim;
    const Expr wanted = of_keys ? is_given(dk) || is_given(dv) : is_given(dq);
    const Expr blocks = batch * heads * ceil_div(own, tile.products.rows) * ceil_div(columns, tile.columns);
    const int chunks = tile.products.columns / tile.chunk;
    const Expr steps = ceil_div(others, tile.products.columns), group = of_keys ? num_heads / num_kv_heads : Expr(1);
    const auto product = [&](const Expr &length) {
        return tile.in_fragments ? TileProduct(tile.products, length, 1) : TileProduct(tile.products, length);
    };
    return {side,
            {product(head_dim), product(head_dim_v)},
            tile.in_fragments ? RDom(0, tile.chunk, 0, chunks, "over")
                              : RDom(0, tile.chunk, 0, chunks, 0, steps, 0, group, "over"),
            RDom(0, tile.columns, 0, tile.products.rows, 0, select(wanted, blocks, 0), "all"),
            RDom(0, steps * group, "steps"),
            RDom(0, 2, 0, tile.columns / 8, "over_pairs")};
}

std::vector<Var> BackwardSumsDevice::in_step(std::vector<Var> first) const {
    if (tile.in_fragments) {
        first.insert(first.end(), {across, down});
    } else {
        first.insert(first.end(), {across, h, down});
    }
    return first;
}

BackwardSumsDevice::Block BackwardSumsDevice::block_of(BackwardSide side, const Expr &number) const {
    const bool of_keys = side == backward_keys;
    const int edge = tile.products.rows;
    const Expr columns = of_keys ? max(head_dim, head_dim_v) : head_dim, heads = of_keys ? num_kv_heads : num_heads;
    const Expr of_row = ceil_div(columns, tile.columns), of_head = ceil_div(of_keys ? max_kv_len : max_q_len, edge);
    const Expr block = number / of_row, line = block / of_head, s = line / heads;
    Block at;
    at.sequence = s;
    at.head = line - s * heads;
    at.first_row = (block - line * of_head) * edge;
    at.first_column = (number - block * of_row) * tile.columns;
    const Expr q_len = field(sequence_q_len, s), kv_len = field(sequence_kv_len, s);
    at.num_rows = of_keys ? kv_len : q_len;
    at.num_other = of_keys ? q_len : kv_len;
    at.stored_rows = of_keys ? select(all_keys != 0, max_kv_len, kv_len) : q_len;
    return at;
}

// Key j and query i meet where i + visible_begin <= j < i + visible_end: both bounds of either move with the other.
BackwardSumsDevice::Range BackwardSumsDevice::range_of(BackwardSide side, const Block &at, const Expr &x) const {
    const auto wide = [](const Expr &e) { return cast<int64_t>(e); };
    const Expr begin = wide(field(sequence_visible_begin, at.sequence)),
               end = wide(field(sequence_visible_end, at.sequence));
    const Expr none = cast<int64_t>(0), most = wide(at.num_other);
    if (side == backward_keys) {
        return {between(wide(x) - end + 1, none, most), between(wide(x) - begin + 1, none, most)};
    }
    return {between(wide(x) + begin, none, most), between(wide(x) + end, none, most)};
}

void BackwardSumsDevice::define_met(Side &of) const {
    const Block at = block_of(of.side, down);
    const Expr last = min(at.first_row + tile.products.rows, at.num_rows) - 1, exists = at.first_row < at.num_rows;
    const Range of_first = range_of(of.side, at, at.first_row), of_last = range_of(of.side, at, last);
    const int columns = tile.products.columns;
    Expr begin = of_first.begin;
    if (tile.in_fragments) begin = begin / columns * columns;
    const Expr steps = select(exists, ceil_div(max(of_last.end - begin, 0), columns), 0);
    const Expr group = of.side == backward_keys ? num_heads / num_kv_heads : Expr(1);
    // In fragments: steps of all heads; rows of Y that all rows of X see.
    of.met(down) =
        !tile.in_fragments ? Tuple(begin, steps) : Tuple(begin, steps, steps * group, of_last.begin, of_first.end);
}

// The head of Y.
Expr BackwardSumsDevice::other_head(BackwardSide side, const Block &at, const Expr &number) const {
    return side == backward_keys ? at.head * (num_heads / num_kv_heads) + number : kv_head_of(at.head);
}

BackwardSumsDevice::Step BackwardSumsDevice::step_of(const Side &of, const Block &at) const {
    const int columns = tile.products.columns;
    if (!tile.in_fragments || of.side == backward_queries) {
        return {of.met(down)[0] + across * columns, other_head(of.side, at, h)};
    }
    const Expr steps = max(of.met(down)[1], 1), n = across / steps;
    return {of.met(down)[0] + (across - n * steps) * columns, other_head(of.side, at, n)};
}

void BackwardSumsDevice::define_rows(Side &of) const {
    const Block at = block_of(of.side, down);
    const Step step = step_of(of, at);
    const bool of_keys = of.side == backward_keys;
    const Expr x = at.first_row + row, y = step.first + column;
    std::vector<Expr> of_x, of_y;
    const Row query = {at.sequence, of_keys ? step.head : at.head, of_keys ? y : x};
    for (int n = 0; n < 2; n++) {
        const Expr to_x = rows(of_keys, n, at.sequence).row(at.sequence, at.head, x),
                   to_y = rows(!of_keys, n, at.sequence).row(at.sequence, step.head, y);
        of_x.push_back(select(x < at.num_rows, to_x, cast<uint64_t>(0)));
        // In fragments rows that do not exist are not read by their number.
        of_y.push_back(tile.in_fragments ? to_y : select(y < at.num_other, to_y, cast<uint64_t>(0)));
    }
    if (!tile.in_fragments) {
        for (const Expr &value : query_values(query)) (of_keys ? of_y : of_x).push_back(value);
    }
    of.x_rows(row, down) = Tuple(of_x);
    of.y_rows(in_step({column})) = Tuple(of_y);
}

void BackwardSumsDevice::define_products(Side &of) const {
    const Block at = block_of(of.side, down);
    for (int n = 0; n < 2; n++) {
        TileProduct &product = of.products[static_cast<size_t>(n)];
        const std::vector<Var> y_at = in_step({product.column}), step = in_step({});
        const Expr x = of.x_rows(product.row, down)[n], y = of.y_rows(std::vector<Expr>(y_at.begin(), y_at.end()))[n];
        TileRows of_x = {type, {down}, x, is_given(x)}, of_y = {type, step, y, is_given(y)};
        if (tile.in_fragments) {
            of_x.whole = rows(of.side == backward_keys, n, at.sequence).in_chunks();
            of_y.whole = rows(of.side != backward_keys, n, at.sequence).in_chunks();
            of_y.exists = Expr();
            of_y.line = step_of(of, at).first + product.column;
            of_y.lines = at.num_other;
        }
        product.define_product(of_x, of_y, step);
    }
}

void BackwardSumsDevice::define_terms(Side &of) const {
    const Block at = block_of(of.side, down);
    const Step step = step_of(of, at);
    const bool of_keys = of.side == backward_keys;
    const std::vector<Var> here = in_step({column, row});
    of.dots(here) = Tuple(of.products[0].sum(here), of.products[1].sum(here));
    const Expr own = at.first_row + row, other = step.first + column;
    const Row query = {at.sequence, of_keys ? step.head : at.head, of_keys ? other : own};
    const FuncRef of_query = of_keys ? of.y_rows(column, across, h, down) : of.x_rows(row, down);
    const Query values({of_query[2], of_query[3], of_query[4], of_query[5]});
    const Expr j = of_keys ? own : other;
    const Gradients found = gradients(of.weight, here, of.dots(here)[0], of.dots(here)[1], query, values,
                                      j >= values.first_key && j < values.end_key, j);
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

Expr BackwardSumsDevice::stored(const Side &of) const {
    const Block at = block_of(of.side, of.all.z);
    const bool of_keys = of.side == backward_keys;
    const Expr number = at.first_row + of.all.y, column_of = at.first_column + of.all.x;
    Expr result;
    for (int n = 0; n < (of_keys ? 2 : 1); n++) {
        Rows to = rows(of_keys, n, at.sequence);
        to.first = !of_keys ? dq : n == 0 ? dk : dv;
        Expr sum = value_of(of.sums, {of.all.x, of.all.y, of.all.z}, n);
        if (tile.in_fragments) sum = once(sum, of.doubts(of.all.x % 8 / 2, of.all.y, of.all.z));
        // Rows after the last one met others all the same, as zeros.
        const Expr value = select(number < at.num_rows, n == 0 ? sum * scale : sum, 0.f);
        const Expr on = is_given(to.first) && number < at.stored_rows && column_of < to.length;
        const Expr store = store_at_if(on, to.row(at.sequence, at.head, number), column_of,
                                       type == ElementType::f32 ? value : from_float(type, value));
        result = result.defined() ? result + store : store;
    }
    return result;
}

}  // namespace heed
