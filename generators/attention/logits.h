#pragma once
// What happens to a logit between q.k and the softmax: changed_logit() and is_visible() are the contract's order, for
// forward, probabilities and gradients on CPUs; the program of CUDA calls the functions of one element in the same
// order.

#include <functional>

#include "Halide.h"
#include "generators/contract/arguments.h"
#include "generators/contract/fields.h"

namespace heed {

constexpr float log2_e = 1.44269504088896340736f;
constexpr float ln_2 = 0.69314718055994530942f;
constexpr float log16_e = log2_e / 4;  // exact quotient and product, so that both bases round alike
constexpr float ln_16 = 4 * ln_2;

// The value that means "no key seen yet" in a running maximum. Finite, so that a difference of two of them is 0,
// not NaN.
Halide::Expr lowest_logit();

// 2^x for x <= 0; relative error below 1.3e-7; exactly 1 at 0; exactly 0 below -126; NaN stays NaN.
Halide::Expr exp2_nonpositive(const Halide::Expr &x);
// 16^x with the same promises: 2^(4 x), in as many instructions. exp16_any: x <= 31.
Halide::Expr exp16_nonpositive(const Halide::Expr &x);
Halide::Expr exp16_any(const Halide::Expr &x);
// For x <= most, an instruction more than exp16_nonpositive.
Halide::Expr exp16_up_to(int most, const Halide::Expr &x);

// 16^(logit - reference) as bf16, rounded, in the upper 16 bits, from logit * fixed_unit + fixed_reference(reference),
// of a difference below 32: relative error 8e-5 before it is rounded; 0 below 2^-127; minus infinity of NaN.
Halide::Expr bf16_weight(const Halide::Expr &fixed);
// The weight of bf16_weight() as a float that is not rounded: its relative error is 8e-5; 0 below 2^-126.
Halide::Expr weight_for_bf16(const Halide::Expr &fixed);
// 16^x as a float, not rounded, from x * fixed_unit, of x below 32: relative error below 2e-7, exactly 1 at 0; exactly
// 0 from 2^-127 on. Of NaN it is any number: bf16_weight() tells.
Halide::Expr power_of_units(const Halide::Expr &units);
constexpr float fixed_unit = 0x1p25f;  // 1 in log16, where 1 in log2 is a unit of a float's exponent
// lowest_logit() is the reference of a row that has seen no key: all its weights become 0.
Halide::Expr fixed_reference(const Halide::Expr &reference);

// Bits of a float: comparisons of bits survive the default float mode, which may delete tests for infinity and NaN.
Halide::Expr is_negative_infinity(const Halide::Expr &x);
Halide::Expr is_zero(const Halide::Expr &x);

// The units of logits. The softmax of the forward pass has powers of 2 only. log16: every float as a natural logit,
// bias or sink stays finite in it, and so does what they sum up to on the way. log2: of results of rows whose logits
// are products as they are, and of splits that are merged; a sink must be below FLT_MAX / log2(e).
enum class LogitUnits { natural, log2, log16 };

// What a row's reference (in the units: its maximum, or near it) and the sum relative to it make of a row: its
// accumulated output is multiplied by `scale` and divided by `total`; lse is the natural logarithm of its softmax
// denominator. The sink, a raw logit in natural units, joins the denominator; minus infinity is none, scale is 1 then.
// A row that sees no key has sum 0: its scale is 0, its total 1 and lse = sink.
struct RowResult {
    Halide::Expr scale, total, lse;
    Halide::Expr factor() const { return scale / total; }  // rounds once more than a division of each element
};
RowResult with_sink(const Halide::Expr &max, const Halide::Expr &sum, const Halide::Expr &sink, LogitUnits units);

// cap * tanh(logit / cap), both in the same units; cap > 0. Relative error below 4e-7; NaN stays NaN.
Halide::Expr soft_capped(const Halide::Expr &logit, const Halide::Expr &cap);

// tanh(z) of device code, with few instructions: relative error below 1e-6; NaN stays NaN.
Halide::Expr tanh_on_device(const Halide::Expr &z);

// i + offset as a float: exact up to 2^24 tokens.
Halide::Expr token_position(const Halide::Expr &i, const Halide::Expr &offset);

// key - (row + offset) of any three 32-bit integers as a float, rounded once: the difference may need 34 bits.
Halide::Expr token_distance(const Halide::Expr &key, const Halide::Expr &row, const Halide::Expr &offset);

// The ALiBi bias of a key at `distance` = j - p(i) tokens (float), in natural units; symmetric (0 or 1): by its size,
// never positive for slope > 0. Press et al., arXiv 2108.12409.
Halide::Expr alibi(const Halide::Expr &slope, const Halide::Expr &distance, const Halide::Expr &symmetric);

// Computes only the value that is chosen, by a branch: for kernels whose lanes agree on the condition.
Halide::Expr branched(const Halide::Expr &condition, const Halide::Expr &yes, const Halide::Expr &no);

#define HEED_EXPR_MEMBER(name, type) Halide::Expr name;
#define HEED_SET_CHANGE(name, type) name = in.name;

// What changes the logits of a kernel. Undefined: the kernel has no such thing.
struct LogitChanges {
    HEED_LOGIT_NUMBERS(HEED_EXPR_MEMBER)                     // scale: of q.k, unless it is folded into q
    HEED_HEAD_VALUES(HEED_EXPR_MEMBER)                       // of the query's head
    Halide::Expr key_scale;                                  // of int8 keys
    Halide::Expr bias;                                       // 0 where the call has none
    Halide::Expr position;                                   // p(i), float
    Halide::Expr distance;                                   // of ALiBi: see alibi()
    std::function<Halide::Expr(const Halide::Expr &)> user;  // a score function, of the logit in natural units
    Halide::Expr of_cap, of_slope;                           // capped() and slope(), where stages compute them
    bool branches = false;                                   // no softcap is computed where it is off
    bool selects_growth = false;                             // a schedule may specialize its logarithm away

    // The numbers that `in` has as members.
    template <typename Values>
    void set_numbers(const Values &in) {
        HEED_LOGIT_NUMBERS(HEED_SET_CHANGE)
    }
    // Sets the values of one head.
    template <typename Values>
    void set_of_head(const Values &in) {
        HEED_HEAD_VALUES(HEED_SET_CHANGE)
    }
    // The kernel has no softcap and no temperature.
    void leave_out_cap() { softcap = Halide::Expr(); }

    Halide::Expr cap_on() const { return softcap > 0.f; }
    Halide::Expr where_capped(const Halide::Expr &yes, const Halide::Expr &no) const {
        return branches ? branched(cap_on(), yes, no) : select(cap_on(), yes, no);
    }
    // As specialize() needs it: the value that it may put in.
    Halide::Expr cap_off() const { return softcap == 0.f; }
    Halide::Expr growth_off() const { return temperature_growth == 0.f; }
    // A capped logit in the units, the tanh in it of what it gave, and how fast it grows with the logit.
    Halide::Expr capped(const Halide::Expr &logit, LogitUnits units) const;
    Halide::Expr tangent(const Halide::Expr &capped) const { return capped / softcap; }
    Halide::Expr slope(const Halide::Expr &capped) const;
    // ALiBi's bias of a key at the distance, in natural units.
    Halide::Expr bias_of_place(const Halide::Expr &slope, const Halide::Expr &at) const;
};

template <typename Values>
LogitChanges logit_changes(const Values &in) {
    LogitChanges changes;
    changes.set_numbers(in);
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
    Halide::Expr mask_on, mask, mask_form;  // bool; the mask's byte, also as one of a word of zeros; MaskForm
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
