#include "generators/cuda/linear_inputs.h"

#include "generators/common/ceil_div.h"

namespace heed::cuda {

using namespace Halide;

Expr LinearRows::num_blocks(int rows, int columns) const {
    return ceil_div(in.num_rows, rows) * ceil_div(in.columns, columns);
}

LinearBlock LinearRows::block(const std::string &kernel, int rows, int columns) {
    const Expr block = Launch::block(kernel), across = code.let("across", ceil_div(in.columns, columns));
    const Expr down = code.let("down", quotient(block, across));
    const Expr first_row = code.let("first_row", down * rows);
    return {first_row, code.let("first", (block - down * across) * columns)};
}

Expr LinearRows::place(const Expr &row, const Expr &first, const Expr &batch, const Expr &token) {
    const Expr b = code.let("b", quotient(row, in.len));
    return code.let("place", first + cast<uint64_t>(b) * batch + cast<uint64_t>(row - b * in.len) * token);
}

Expr LinearRows::x(const Expr &row) { return place(row, in.x_first, in.x_batch, in.x_token); }
Expr LinearRows::out(const Expr &row) { return place(row, in.out_first, in.out_batch, in.out_token); }
Expr LinearRows::weight(const Expr &column) {
    return code.let("w_row", in.weight_first + cast<uint64_t>(in.first_column + column) * in.weight_row);
}

void LinearRows::store(const Expr &row_of_out, const Expr &column, const Expr &sum) {
    const int size = elements.size();
    const Registers result = code.registers("result", Float(32), 1);
    code.set(result, 0, sum);
    code.when(in.bias_first != cast<uint64_t>(0), [&] {
        const Expr at = in.bias_first + cast<uint64_t>(in.first_column + column) * cast<uint64_t>(size);
        code.set(result, 0, sum + elements.load(at, 1)[0]);
    });
    const Expr head = code.let("head", quotient(column, in.head_dim));
    const Expr first = row_of_out + cast<uint64_t>(head) * in.out_head;
    const Expr element = cast<uint64_t>(column - head * in.head_dim);
    const auto place = [&](int bytes) { return first + element * cast<uint64_t>(bytes); };
    if (size == 4) return elements.store(place(4), {result[0]});
    code.when(
        in.out_is_f32 != 0, [&] { code.run(store_f32(place(4), result[0])); },
        [&] { elements.store(place(size), {result[0]}); });
}

}  // namespace heed::cuda
