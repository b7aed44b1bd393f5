#include "generators/attention/backward_words.h"

#include "generators/attention/backward_logits.h"
#include "generators/common/ceil_div.h"
#include "generators/lowering/bf16_dots.h"

namespace heed {

using namespace Halide;

namespace {

constexpr int words_chunk = backward_chunk;

Expr magnitude(const Expr &x) { return x & cast<uint16_t>(0x7fff); }
Expr is_finite_bf16(const Expr &x) { return magnitude(x) < cast<uint16_t>(0x7f80); }

Expr word_of(const Expr &low, const Expr &high) { return reinterpret<int32_t>(bf16_pair(low, high)); }

template <typename Buffer>
void dense(Buffer buffer) {
    buffer.dim(0).set_min(0);
    buffer.dim(1).set_min(0).set_stride(buffer.dim(0).extent());
    if (buffer.dimensions() == 3) buffer.dim(2).set_min(0).set_stride(buffer.dim(1).stride() * buffer.dim(1).extent());
}

}  // namespace

BackwardWordsKernel::BackwardWordsKernel() : BackwardWordsArguments({ElementType::bf16}) {
    Expr head_dim = x.dim(0).extent(), num_rows = x.dim(1).extent();
    const auto element = [&](const Expr &d, const Expr &of_row) {
        Expr at = clamp(of_row, 0, num_rows - 1);
        Expr seen = of_row < num_rows && sees_keys(lse(at));
        return select(likely(d < head_dim) && seen, x(clamp(likely(d), 0, head_dim - 1), at), cast<uint16_t>(0));
    };
    const auto number = [&](const Expr &d, const Expr &of_row) {
        Expr found = element(d, of_row);
        return select(is_finite_bf16(found), found, cast<uint16_t>(0));
    };
    Expr d = chunk * words_chunk + c;
    words(row, p) = word_of(element(2 * p, row), element(2 * p + 1, row));
    row_words(p, row) = word_of(element(2 * p, row), element(2 * p + 1, row));
    pairs(c, p, chunk) = word_of(number(d, 2 * p), number(d, 2 * p + 1));
    columns(p, c, chunk) = word_of(number(d, 2 * p), number(d, 2 * p + 1));

    over_rows = RDom(0, num_rows, 0, ceil_div(head_dim, words_chunk), "over_rows");
    largest_of_lane(c) = cast<uint16_t>(0);
    largest_of_lane(c) = max(largest_of_lane(c), magnitude(element(over_rows.y * words_chunk + c, over_rows.x)));
    RDom over_lanes(0, words_chunk, "over_lanes");
    largest(u) = 0;
    largest(u) = max(largest(u), cast<int32_t>(largest_of_lane(over_lanes)) << 16);

    x.dim(0).set_min(0);
    x.dim(1).set_min(0);
    lse.dim(0).set_min(0).set_stride(Expr());
    for (const Func &f : {words, pairs, row_words, columns}) dense(Func(f).output_buffer());
    pairs.output_buffer().dim(0).set_bounds(0, words_chunk);
    columns.output_buffer().dim(1).set_bounds(0, words_chunk);
    largest.output_buffer().dim(0).set_bounds(0, 1);
}

BackwardRepairKernel::BackwardRepairKernel()
    : BackwardRepairArguments({ElementType::bf16}), over(0, factors.dim(1).extent(), "over") {
    Expr element = elements(half, p, chunk, over), factor = factors(n, over);
    over.where(!is_finite_bf16(element));
    sums(n, half, p, chunk) = before(n, half, p, chunk);
    sums(n, half, p, chunk) +=
        select(magnitude(factor) != 0, to_float(ElementType::bf16, factor) * to_float(ElementType::bf16, element), 0.f);
    OutputImageParam buffer = sums.output_buffer();
    for (int i = 0; i < 4; i++) {
        elements.dim(i).set_min(0).set_stride(Expr());
        before.dim(i).set_bounds(0, buffer.dim(i).extent()).set_stride(buffer.dim(i).stride());
        buffer.dim(i).set_min(0).set_stride(Expr());
    }
    for (int i = 0; i < 2; i++) factors.dim(i).set_min(0).set_stride(Expr());
}

}  // namespace heed
