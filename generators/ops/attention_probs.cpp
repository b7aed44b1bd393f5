#include "generators/ops/attention_probs.h"

#include "generators/common/ceil_div.h"

namespace heed {

using namespace Halide;

AttentionProbsKernel::AttentionProbsKernel(ElementType dtype, const LinearTile &tile)
    : AttentionProbsArguments({dtype, dtype}),
      tile(tile), probs{Func("probs"), ProbsLines(width())}, probs_16{Func("probs_16"), ProbsLines(width())} {
    scores(j, i) = score(j, i, products(j, i));
    define(probs, Float(32));
    if (dtype != ElementType::f32) define(probs_16, stored_type(dtype));
    state_buffer_contract();
}

void AttentionProbsKernel::define(ProbsResult &result, const Type &type) {
    const auto of_products = [this](const Expr &key, const Expr &row) { return score(key, row, products(key, row)); };
    const auto stored = [this, &type](const Expr &x) { return type == Float(32) ? x : from_float(types.own, x); };
    if (tile.rows == 0) {
        result.wanted(j, i) = stored(result.lines.define(j, i, of_products, mode, sink));
        return;
    }
    ProbsTile &in = result.tile;
    in.over_k = RDom(0, linear_step_block, 0, queries.dim(2).extent(), "over_k");
    in.define_sum({{in.lane, in.r, in.panel, in.t},
                   0.f,
                   queries(in.over_k.x, in.r, in.over_k.y, in.t),
                   keys(in.lane, in.over_k.y * linear_step_block + in.over_k.x, in.panel),
                   [](const Expr &so_far, const Expr &q, const Expr &k) { return so_far + q * k; }});
    in.products(j, in.r, in.t) = in.sum(j % tile.columns, in.r, j / tile.columns, in.t);
    result.wanted(j, i) = undef(type);
    const Expr count = result.wanted.output_buffer().dim(1).extent();
    RDom rows(0, tile.rows, 0, ceil_div(count, tile.rows), "over_rows");
    const Expr row = rows.y * tile.rows + rows.x;
    rows.where(row < count);
    const auto of_tile = [&](const Expr &key, const Expr &at) {
        const Expr existing = unsafe_promise_clamped(at, 0, mask.dim(1).extent() - 1);
        return score(key, existing, in.products(key, at % tile.rows, at / tile.rows));
    };
    result.wanted(j, unsafe_promise_clamped(row, 0, count - 1)) =
        stored(result.lines.define(j, row, of_tile, mode, sink));
    result.over_rows = rows;
}

Expr AttentionProbsKernel::score(const Expr &key, const Expr &row, const Expr &product) const {
    ProbsScore in = {product,         mode,           key,       first_row + row, kv_len,   visible_begin, visible_end,
                     position_offset, mask(key, row), mask_form, bias(key, row),  bias_form};
    if (types.own != ElementType::f32) in.bias_16 = to_float(types.own, bias_16(key, row));
    LogitChanges changes = logit_changes(*this);
    changes.selects_growth = true;
    changes.set_of_head(*this);
    return in.value(changes);
}

Expr AttentionProbsKernel::keeps_logits() const {
    const LogitChanges changes = logit_changes(*this);
    return changes.cap_off() && changes.growth_off() && alibi_slopes == 0.f;
}

Expr AttentionProbsKernel::is_plain() const { return mask_form == no_mask && bias_form == no_bias && keeps_logits(); }

Expr AttentionProbsKernel::has_mask_only() const {
    return bias_form == no_bias && mask.dim(0).stride() == 1 && keeps_logits();
}

Expr AttentionProbsKernel::has_bias_only() const {
    return mask_form == no_mask && bias_form == bias_of_f32 && bias.dim(0).stride() == 1 && keeps_logits();
}

Expr AttentionProbsKernel::makes_probabilities() const { return mode == probabilities; }

void AttentionProbsKernel::state_buffer_contract() {
    for (ImageParam param : {mask, bias, bias_16}) {
        param.dim(0).set_min(0).set_stride(Expr());
        param.dim(1).set_min(0);
        if (param.name() != mask.name()) param.dim(0).set_extent(width());
    }
    products.dim(0).set_min(0);
    products.dim(1).set_min(0);
    if (tile.rows != 0) {
        lay_out_tiles(queries, tile);
        lay_out_panels(keys, queries, tile);
    }
    for (Func f : pipeline().outputs()) {
        f.output_buffer().dim(0).set_bounds(0, width());
        f.output_buffer().dim(1).set_min(0);
    }
}

std::vector<OutputType> AttentionProbsKernel::output_types() const {
    std::vector<OutputType> list = AttentionProbsArguments::output_types();
    if (types.own == ElementType::f32) list.pop_back();
    return list;
}

Pipeline AttentionProbsKernel::pipeline() const {
    std::vector<Func> outputs = {scores, probs.wanted};
    if (types.own != ElementType::f32) outputs.push_back(probs_16.wanted);
    return Pipeline(outputs);
}

}  // namespace heed
