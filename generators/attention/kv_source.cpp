#include "generators/attention/kv_source.h"

#include <limits>

namespace heed {

using namespace Halide;

Expr trusted_slot(const Expr &first, const Expr &position, const Expr &num_slots) {
    return unsafe_promise_clamped(first + position, 0, num_slots - 1);
}

Expr clamped_slot(const Expr &first, const Expr &position, const Expr &num_slots) {
    return clamp(first + position, 0, num_slots - 1);
}

Expr page_size_of(const Expr &page_size) {
    return select(page_size > 0, page_size, std::numeric_limits<int32_t>::max());
}

// The quotient of two non-negative 32-bit integers in double is exact once rounded down: it differs from any integer
// that it does not reach by at least 1 / page_size, 2^-31 of its size. Vectors divide doubles, not integers.
KeySlot PageTable::slot(const Expr &position, const Expr &sequence) const {
    Expr quotient = cast<int32_t>(cast<double>(position) / cast<double>(page_size));
    Expr page = pages(unsafe_promise_clamped(quotient, 0, max_pages_per_seq - 1), sequence);
    return {unsafe_promise_clamped(position - quotient * page_size, 0, page_size - 1), clamp(page, 0, num_pages - 1)};
}

void PaddedRows::define(const std::vector<Var> &args, const Expr &row_length, int unit,
                        const std::function<Expr(Expr)> &element) {
    if (unit == 0) {
        rows(args) = element(args[0]);
        return;
    }
    zeros = RDom({{0, unit}, {0, select(row_length % unit == 0, 0, 1)}}, rows.name() + "_zeros");
    over_d = RDom(0, row_length, rows.name() + "_d");
    std::vector<Expr> at(args.begin(), args.end());
    const Expr value = element(over_d);
    rows(args) = undef(value.type());
    at[0] = row_length / unit * unit + zeros.x;
    rows(at) = cast(value.type(), 0);
    at[0] = over_d;
    rows(at) = value;
}

}  // namespace heed
