#include "generators/ops/backward_blocks.h"

#include "generators/common/ceil_div.h"

namespace heed {

using namespace Halide;

namespace {

// A 64-bit value between bounds, in 32 bits.
Expr between(const Expr &x, const Expr &least, const Expr &most) { return cast<int32_t>(max(min(x, most), least)); }

}  // namespace

void BackwardBlocks::define_fields(Func &of, const Var &sequence) const {
    std::vector<Expr> all;
    for (int n = 0; n < sequence_padding; n++) all.push_back(field(static_cast<SequenceField>(n), sequence));
    of(sequence) = Tuple(all);
}

Expr BackwardBlocks::num_blocks(BackwardSide side) const {
    const bool of_keys = side == backward_keys;
    const Expr rows = of_keys ? max_kv_len : max_q_len, columns = of_keys ? max(head_dim, head_dim_v) : head_dim;
    const Expr wanted = of_keys ? is_given(dk) || is_given(dv) : is_given(dq);
    const Expr blocks =
        batch * (of_keys ? num_kv_heads : num_heads) * ceil_div(rows, shape.rows) * ceil_div(columns, shape.columns);
    return select(wanted, blocks, 0);
}

BackwardBlocks::Block BackwardBlocks::block_of(BackwardSide side, const Expr &number) const {
    const bool of_keys = side == backward_keys;
    const Expr columns = of_keys ? max(head_dim, head_dim_v) : head_dim, heads = of_keys ? num_kv_heads : num_heads;
    const Expr of_row = ceil_div(columns, shape.columns),
               of_head = ceil_div(of_keys ? max_kv_len : max_q_len, shape.rows);
    const Expr block = number / of_row, line = block / of_head, s = line / heads;
    Block at;
    at.sequence = s;
    at.head = line - s * heads;
    at.first_row = (block - line * of_head) * shape.rows;
    at.first_column = (number - block * of_row) * shape.columns;
    const Expr q_len = field(sequence_q_len, s), kv_len = field(sequence_kv_len, s);
    at.num_rows = of_keys ? kv_len : q_len;
    at.num_other = of_keys ? q_len : kv_len;
    at.stored_rows = of_keys ? select(all_keys != 0, max_kv_len, kv_len) : q_len;
    return at;
}

// Key j and query i meet where i + visible_begin <= j < i + visible_end: both bounds of either move with the other.
BackwardBlocks::Range BackwardBlocks::range_of(BackwardSide side, const Block &at, const Expr &x) const {
    const auto wide = [](const Expr &e) { return cast<int64_t>(e); };
    const Expr begin = wide(field(sequence_visible_begin, at.sequence)),
               end = wide(field(sequence_visible_end, at.sequence));
    const Expr none = cast<int64_t>(0), most = wide(at.num_other);
    if (side == backward_keys) {
        return {between(wide(x) - end + 1, none, most), between(wide(x) - begin + 1, none, most)};
    }
    return {between(wide(x) + begin, none, most), between(wide(x) + end, none, most)};
}

Expr BackwardBlocks::stored(BackwardSide side, const std::vector<Expr> &sums, const Expr &column, const Expr &row,
                            const Expr &number) const {
    const Block at = block_of(side, number);
    const Expr x = at.first_row + row, column_of = at.first_column + column;
    Expr result;
    for (size_t n = 0; n < sums.size(); n++) {
        const Rows to = gradient_rows(side, static_cast<int>(n), at.sequence);
        // Rows after the last one met others all the same, as zeros.
        const Expr value = select(x < at.num_rows, n == 0 ? sums[n] * scale : sums[n], 0.f);
        const Expr on = is_given(to.first) && x < at.stored_rows && column_of < to.length;
        const Expr store = store_at_if(on, to.row(at.sequence, at.head, x), column_of,
                                       type == ElementType::f32 ? value : from_float(type, value));
        result = result.defined() ? result + store : store;
    }
    return result;
}

}  // namespace heed
