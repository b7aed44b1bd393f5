#include "generators/cuda/backward_block.h"

#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"

namespace heed::cuda {

using namespace Halide;

namespace {

// A 64-bit value between bounds, in 32 bits.
Expr between(const Expr &x, const Expr &least, const Expr &most) { return cast<int32_t>(max(min(x, most), least)); }

}  // namespace

std::vector<std::pair<std::string, Expr>> BackwardBlock::host_values(int rows) const {
    return {{"blocks_of_head", ceil_div(select(is_keys, in.max_kv_len, in.max_q_len), rows)},
            {"group_size", in.q.extent(1) / in.k.extent(1)}};
}

Expr BackwardBlock::num_blocks() const { return in.batch * heads() * blocks_of_head; }

void BackwardBlock::locate(const Expr &block, int rows) {
    const Expr line = code.let("line", quotient(block, blocks_of_head));
    first_row = code.let("first_row", (block - line * blocks_of_head) * rows);
    sequence = code.let("sequence", quotient(line, heads()));
    head = code.let("head", line - sequence * heads());
    fields = in.read_sequence(code, sequence);
    num_rows = select(is_keys, fields.kv_len, fields.q_len);
    stored_rows = code.let("stored_rows", select(is_keys && in.all_keys != 0, in.max_kv_len, num_rows));
    num_heads = select(is_keys, group_size, 1);

    // Key j and query i meet where i + visible_begin <= j < i + visible_end: both bounds of either move with the other.
    const auto wide = [](const Expr &x) { return cast<int64_t>(x); };
    const Expr last = min(first_row + rows, num_rows) - 1;
    const Expr none = cast<int64_t>(0), q_len = wide(fields.q_len), kv_len = wide(fields.kv_len);
    const Expr above_first = wide(first_row) - fields.visible_end + 1, above_last = wide(last) - fields.visible_end + 1,
               below_first = wide(first_row) - fields.visible_begin + 1,
               below_last = wide(last) - fields.visible_begin + 1;
    const auto choose = [&](const char *name, const Expr &queries, const Expr &keys, const Expr &most) {
        return code.let(name, select(first_row < num_rows, between(select(is_keys, queries, keys), none, most), 0));
    };
    const Expr most = select(is_keys, q_len, kv_len);
    begin_other = choose("begin_other", above_first, wide(first_row) + fields.visible_begin, most);
    end_other = choose("end_other", below_last, wide(last) + fields.visible_end, most);
    full_begin = choose("full_begin", above_last, wide(last) + fields.visible_begin, most);
    full_end = choose("full_end", below_first, wide(first_row) + fields.visible_end, most);
}

Expr BackwardBlock::other_head(const Expr &h) const {
    return select(is_keys, head * group_size + h, quotient(head, group_size));
}

BackwardBlock::Rows BackwardBlock::rows(const DeviceTensor &of_keys, const DeviceTensor &of_queries, const Expr &keys,
                                        const Expr &of_head) const {
    const auto first = [&](const DeviceTensor &tensor, const Expr &token) {
        return tensor_row(tensor, sequence, of_head, token, size);
    };
    const auto row_bytes = [&](const DeviceTensor &tensor) { return cast<int64_t>(tensor.stride(2)) * size; };
    const auto in_units = [&](const DeviceTensor &tensor, int bytes, const Expr &length) {
        const Expr elements = tensor.stride(1) | tensor.stride(2) | tensor.stride(3) | length;
        return (cast<uint32_t>(tensor.address()) % bytes + cast<uint32_t>(elements % (bytes / size))) == 0;
    };
    const auto aligned = [&](int bytes) {
        return select(keys, in_units(of_keys, bytes, of_keys.extent(0)),
                      in_units(of_queries, bytes, of_queries.extent(0)));
    };
    return {select(keys, first(of_keys, fields.first_key), first(of_queries, fields.first_q)),
            select(keys, row_bytes(of_keys), row_bytes(of_queries)),
            select(keys, of_keys.extent(0), of_queries.extent(0)),
            select(keys, of_keys.address(), of_queries.address()) != cast<uint64_t>(0),
            aligned(16),
            aligned(2 * size)};
}

}  // namespace heed::cuda
