#pragma once
// What happens to a logit between q.k and the softmax: changed_logit() and is_visible() are the contract's order, for
// forward, probabilities and gradients on CPUs; CUDA programs call the functions of one element in the same order.

#include <functional>

#include "Halide.h"
#include "generators/contract/fields.h"

namespace heed {

constexpr float log2_e = 1.44269504088896340736f;
constexpr float ln_2 = 0.69314718055994530942f;

// The value that stands for "no key seen yet" in a running maximum. Finite, so that a difference of two of them is 0,
// not NaN.
Halide::Expr lowest_logit();

// 2^x for x <= 0; relative error below 1.3e-7; exactly 1 at 0; exactly 0 below -126; NaN stays NaN.
Halide::Expr exp2_nonpositive(const Halide::Expr &x);

// Bits of a float: comparisons of bits survive the default float mode, which may delete tests for infinity and NaN.
Halide::Expr is_negative_infinity(const Halide::Expr &x);
Halide::Expr is_zero(const Halide::Expr &x);

// What the running maximum (in log2) and the sum relative to it make of a row: its accumulated output is multiplied by
// `scale` and divided by `total`; lse is the natural logarithm of its softmax denominator. The sink, a raw logit in
// natural units, joins the denominator; minus infinity is none, scale is 1 then. A row that sees no key has sum 0: its
// scale is 0, its total 1 and lse = sink.
struct RowResult {
    Halide::Expr scale, total, lse;
    Halide::Expr factor() const { return scale / total; }  // rounds once more than a division of each element
};
RowResult with_sink(const Halide::Expr &max, const Halide::Expr &sum, const Halide::Expr &sink);

// cap * tanh(logit / cap), both in the same units; cap > 0. Relative error below 4e-7; NaN stays NaN.
Halide::Expr soft_capped(const Halide::Expr &logit, const Halide::Expr &cap);

// key - (row + offset) of any three 32-bit integers as a float, rounded once: the difference may need 34 bits.
Halide::Expr token_distance(const Halide::Expr &key, const Halide::Expr &row, const Halide::Expr &offset);

// The ALiBi bias of a key at `distance` = j - p(i) tokens (float), in natural units; symmetric (0 or 1): by its size,
// never positive for slope > 0. Press et al., arXiv 2108.12409.
Halide::Expr alibi(const Halide::Expr &slope, const Halide::Expr &distance, const Halide::Expr &symmetric);

// Logit plus an additive bias in natural units. A finite bias as low as -FLT_MAX stays finite, NaN stays NaN.
Halide::Expr add_bias(const Halide::Expr &logit, const Halide::Expr &bias);

// What changes the logits of a kernel, in this order. Undefined: the kernel has no such thing.
struct LogitChanges {
    Halide::Expr scale;                                      // of q.k, unless it is folded into q
    Halide::Expr key_scale;                                  // of int8 keys
    Halide::Expr cap_on, cap;                                // bool; softcap
    Halide::Expr bias;                                       // 0 where the call has none
    Halide::Expr slope, distance, symmetric;                 // ALiBi: see alibi()
    std::function<Halide::Expr(const Halide::Expr &)> user;  // a score function, of the logit in natural units
};

// The softmax of the forward pass is in units of log2, so that it needs exp2 only.
enum class LogitUnits { natural, log2 };

// What HEED_LOGIT_VALUES says, as members of `in`.
template <typename Values>
LogitChanges logit_changes(const Values &in) {
    LogitChanges changes;
    changes.scale = in.scale;
    changes.cap_on = in.softcap > 0.f;
    changes.cap = in.softcap;
    changes.symmetric = in.alibi_symmetric;
    return changes;
}

struct ChangedLogit {
    Halide::Expr scaled, capped, value;
};
ChangedLogit changed_logit(const Halide::Expr &product, const LogitChanges &changes, LogitUnits units);

// The gradient of `scaled` from that of `value`, in natural units and without a score function; `as_is`: the softcap
// was passed by.
Halide::Expr scaled_gradient(const Halide::Expr &of_value, const ChangedLogit &logit, const LogitChanges &changes,
                             const Halide::Expr &as_is);

// What hides a key, each where it is defined.
struct LogitVisibility {
    Halide::Expr in_range;                  // causal, window, lengths
    Halide::Expr mask_on, mask, mask_form;  // bool; the mask's byte; MaskForm
    Halide::Expr bias;                      // minus infinity hides
    Halide::Expr user;                      // a score function's `visible`
};
// Undefined where nothing can hide it.
Halide::Expr is_visible(const LogitVisibility &visibility);

// Whether the mask byte lets the query attend, by the convention of `form`.
Halide::Expr mask_allows(const Halide::Expr &mask, const Halide::Expr &form);

// First key that query position i may see, and the key after the last one.
Halide::Expr first_visible(const Halide::Expr &i, const Halide::Expr &visible_begin);
Halide::Expr end_visible(const Halide::Expr &i, const Halide::Expr &visible_end, const Halide::Expr &kv_len);

}  // namespace heed
