#include "kv_source.h"

namespace heed {

using namespace Halide;

Expr KvSource::trusted(const Expr &d, const Expr &position, const Expr &kv_head, const Expr &batch) const {
    return rows(d, kv_head, unsafe_promise_clamped(position, 0, capacity - 1), batch);
}

Expr KvSource::clamped(const Expr &d, const Expr &position, const Expr &kv_head, const Expr &batch) const {
    return rows(d, kv_head, clamp(position, 0, capacity - 1), batch);
}

void PaddedRows::define(const std::vector<Var> &args, const Expr &row_length,
                        const std::function<Expr(Expr)> &element) {
    over_d = RDom(0, row_length, rows.name() + "_d");
    std::vector<Expr> at(args.begin(), args.end());
    rows(args) = 0.f;
    at[0] = over_d;
    rows(at) = element(over_d);
}

}  // namespace heed
