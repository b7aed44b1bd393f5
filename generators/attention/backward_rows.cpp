#include "generators/attention/backward_rows.h"

#include "generators/attention/backward_logits.h"
#include "generators/common/ceil_div.h"
#include "generators/common/sum_in_halves.h"

namespace heed {

using namespace Halide;

namespace {

constexpr int chunk_size = backward_chunk;

Expr size_bits(const Expr &x) { return bits(x) & 0x7fffffff; }

// Rows that the caller has, and whether they are any row's: not beyond the last, not one that sees no key.
struct RowsOfCall {
    Expr count;

    Expr at(const Expr &row) const { return clamp(row, 0, count - 1); }
    Expr has(const Expr &row, const Expr &lse) const { return row < count && sees_keys(lse); }
};

}  // namespace

Expr has_delta(const Expr &out) { return size_bits(out) != 0; }

BackwardStatsKernel::BackwardStatsKernel(ElementType type) : BackwardStatsArguments({type}) {
    Expr head_dim = out.dim(0).extent(), num_rows = row_lse.dim(0).extent(), at = clamp(row, 0, num_rows - 1);
    over_chunks = RDom(0, ceil_div(head_dim, chunk_size), "over_chunks");
    Expr given = row_lse(at);
    lse(row) = select(row < num_rows && !is_negative_infinity(given), given, backward_no_key);

    Expr element = over_chunks * chunk_size + c, exists = likely(element < head_dim);
    Expr inside = clamp(likely(element), 0, head_dim - 1);
    Expr of_out = to_float(type, out(inside, at)), of_dout = to_float(type, dout(inside, at));
    products(c, row) += select(exists && has_delta(of_out), of_out * of_dout, 0.f);
    Expr total = sum_in_halves(products, row, 0, chunk_size);
    delta(row) = select(sees_keys(lse(row)), total, 0.f);

    for (const ImageParam &rows : {out, dout}) {
        rows.dim(0).set_bounds(0, head_dim);
        rows.dim(1).set_bounds(0, num_rows);
    }
    row_lse.dim(0).set_min(0).set_stride(Expr());
    lse.output_buffer().dim(0).set_min(0);
    delta.output_buffer().dim(0).set_bounds(0, lse.output_buffer().dim(0).extent());
}

BackwardRowsKernel::BackwardRowsKernel(ElementType type, int vector) : BackwardRowsArguments({type}) {
    Expr head_dim = x.dim(0).extent();
    const RowsOfCall rows = {x.dim(1).extent()};
    Expr element = chunk * chunk_size + c, inside = clamp(likely(element), 0, head_dim - 1);
    chunks(c, row, chunk) = select(likely(element < head_dim) && rows.has(row, lse(rows.at(row))),
                                   to_float(type, x(inside, rows.at(row))), 0.f);
    Expr of_lane = chunk * chunk_size + c;
    of_row(d, row) = select(rows.has(row, lse(rows.at(row))), to_float(type, x(d, rows.at(row))), 0.f);
    has_squares = head_dim % vector == 0;
    lanes(c, d, chunk) = select(has_squares, squares.define(vector, of_row, of_lane, d, {}), of_row(d, of_lane));

    OutputImageParam in_chunks = chunks.output_buffer(), in_lanes = lanes.output_buffer();
    over_rows = RDom(0, in_chunks.dim(1).extent(), 0, in_chunks.dim(2).extent(), "over_rows");
    largest_of_lane(c) = 0;
    largest_of_lane(c) = max(largest_of_lane(c), size_bits(chunks(c, over_rows.x, over_rows.y)));
    RDom over_lanes(0, chunk_size, "over_lanes");
    largest(u) = 0;
    largest(u) = max(largest(u), largest_of_lane(over_lanes));

    x.dim(0).set_min(0);
    x.dim(1).set_min(0);
    lse.dim(0).set_min(0).set_stride(Expr());
    for (OutputImageParam buffer : {in_chunks, in_lanes}) {
        buffer.dim(0).set_bounds(0, chunk_size);
        buffer.dim(1).set_min(0).set_stride(chunk_size);
        buffer.dim(2).set_min(0).set_stride(chunk_size * buffer.dim(1).extent());
    }
    largest.output_buffer().dim(0).set_bounds(0, 1);
}

BackwardStoreKernel::BackwardStoreKernel(ElementType type) : BackwardStoreArguments({type}) {
    out(d, row) = from_float(type, factor * sums(d % chunk_size, row, d / chunk_size));

    sums.dim(0).set_bounds(0, chunk_size).set_stride(Expr());
    for (const int n : {1, 2}) sums.dim(n).set_min(0);
    for (const int n : {0, 1}) out.output_buffer().dim(n).set_min(0);
}

BackwardBiasKernel::BackwardBiasKernel() {
    const auto once = [&](int n) { return select(before.dim(n).extent() == 1, grads.dim(n).extent(), 1); };
    RDom over(0, once(0), 0, once(1), "over_logits");
    sum(j, i) += grads(j + over.x, i + over.y);
    dbias(j, i) = before(j, i) + sum(j, i);
    OutputImageParam buffer = dbias.output_buffer();
    for (const int n : {0, 1}) {
        grads.dim(n).set_min(0).set_stride(Expr());
        before.dim(n).set_min(0);
        buffer.dim(n).set_bounds(0, before.dim(n).extent());
    }
}

BackwardSinksKernel::BackwardSinksKernel() {
    RDom over(0, lse.dim(0).extent(), "over_rows");
    sum(u) = cast<double>(0);
    sum(u) -= cast<double>(weight_of(sink - lse(over)) * delta(over));
    dsink(u) = before(u) + cast<float>(sum(u));
    for (const ImageParam &rows : {lse, delta}) rows.dim(0).set_bounds(0, lse.dim(0).extent());
    before.dim(0).set_bounds(0, 1);
    dsink.output_buffer().dim(0).set_bounds(0, 1);
}

}  // namespace heed
