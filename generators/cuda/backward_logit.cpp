#include "generators/cuda/backward_logit.h"

#include "generators/attention/dropout.h"
#include "generators/attention/logits.h"
#include "generators/cuda/intrinsics.h"

namespace heed::cuda {

using namespace Halide;

Expr BackwardLogit::load_slope(const Expr &head) {
    const Registers slope = code.registers("slope", Float(32), 1);
    code.set(slope, 0, 0.f);
    code.when(in.alibi_slopes.address() != cast<uint64_t>(0), [&] {
        code.set(slope, 0, load_f32(in.alibi_slopes.address() + element_bytes(head, in.alibi_slopes.stride(0), 4)));
    });
    return code.let("slope", slope[0]);
}

Expr BackwardLogit::element_of(const DeviceTensor &tensor, const BackwardHead &at, const Expr &i, const Expr &j,
                               int size) {
    return tensor.address() + element_bytes(at.sequence, tensor.stride(3), size) +
           element_bytes(at.head, tensor.stride(2), size) + element_bytes(i, tensor.stride(1), size) +
           element_bytes(j, tensor.stride(0), size);
}

Expr BackwardLogit::factor_of_dropout(const BackwardHead &at, const Expr &i, const Expr &j) {
    const Registers factor = code.registers("dropout", Float(32), 1);
    code.set(factor, 0, 1.f);
    const auto wide = [](const Expr &x) { return cast<uint64_t>(x); };
    code.when(in.dropout_threshold != wide(0), [&] {
        const DropoutStream stream =
            DropoutStream::of(in.dropout_seed ^ wide(at.zero), in.dropout_offset ^ wide(at.zero));
        const Expr line = wide(at.sequence) * wide(in.q.extent(1)) + wide(at.head);
        const Expr element = code.let("element", (line * wide(in.max_q_len) + wide(i)) * wide(in.max_kv_len) + wide(j));
        code.set(factor, 0, select(is_kept(stream, in.dropout_threshold, element), in.dropout_scale, 0.f));
    });
    return code.let("kept", factor[0]);
}

LogitGradients BackwardLogit::gradients(const BackwardHead &at, const Expr &i, const Expr &j, const Expr &dot,
                                        const Expr &weight_dot, const Expr &lse_log2, const Expr &delta) {
    const Registers seen = code.registers("seen", Int(32), 1), x = code.registers("logit_and_slope", Float(32), 2),
                    added = code.registers("added", Float(32), 1);
    const SequenceFields &f = at.fields;
    code.set(seen, 0,
             cast<int32_t>(i < f.q_len && j >= first_visible(i, f.visible_begin) &&
                           j < end_visible(i, f.visible_end, f.kv_len)));
    code.set(added, 0, 0.f);
    code.when(seen[0] != 0, [&] {
        code.when(in.mask_form != no_mask, [&] {
            const Expr mask = code.let("mask", load_u8(element_of(in.mask, at, i, j, 1)));
            code.set(seen, 0, cast<int32_t>(mask_allows(cast<uint8_t>(mask), in.mask_form)));
        });
        code.when(in.bias_form == bias_of_f32, [&] { code.set(added, 0, load_f32(element_of(in.bias, at, i, j, 4))); });
        if (elements.size() == 2) {
            code.when(in.bias_form == bias_of_dtype,
                      [&] { code.set(added, 0, elements.load(element_of(in.bias_16, at, i, j, 2), 1)[0]); });
        }
        code.set(seen, 0, select(is_negative_infinity(added[0]), 0, seen[0]));
    });
    const LogitChanges changes = logit_changes(in);
    const Expr raw = code.let("raw", dot * changes.scale);
    code.set(x, 0, raw);
    code.set(x, 1, 1.f);
    code.when(changes.cap_on(), [&] {
        const Expr capped = code.let("capped", changes.capped(raw, LogitUnits::natural));
        const Expr tangent = code.let("tangent", changes.tangent(capped));
        code.set(x, 0, capped);
        code.set(x, 1, 1.f - tangent * tangent);
    });
    const Expr distance = token_distance(j, i, f.position_offset);
    const Expr logit = code.let("logit", x[0] + (added[0] + changes.bias_of_place(at.slope, distance)));
    const Expr is_seen = seen[0] != 0;
    const Expr weight = code.let("weight", select(is_seen, exp2(fma(logit, log2_e, -lse_log2)), 0.f));
    const Expr kept = factor_of_dropout(at, i, j), dropped = is_zero(kept);
    const Expr weight_grad = code.let("weight_grad", select(dropped, 0.f, weight_dot * kept));
    const Expr logit_grad = code.let("logit_grad", select(is_seen, weight * (weight_grad - delta), 0.f));
    return {code.let("kept_weight", select(dropped, 0.f, weight * kept)),
            code.let("score_grad", select(is_seen && changes.cap_on(), logit_grad * x[1], logit_grad))};
}

}  // namespace heed::cuda
