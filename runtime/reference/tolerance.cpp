#include "runtime/reference/tolerance.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>

#include "runtime/reference/element.h"

namespace heed_reference {
namespace {

constexpr double eps = 0x1p-23;

// Half a unit in the last place at 1, and half the smallest subnormal; a little over a half for f16 and bf16, whose
// rounding comes after that of float.
double relative_rounding(heed_dtype dtype) {
    return dtype == HEED_F16 ? 1.01 * 0x1p-11 : dtype == HEED_BF16 ? 1.01 * 0x1p-8 : 0;
}
// u_w of the bounds.
double rounding_of_weights(heed_dtype dtype) { return relative_rounding(dtype) + (dtype == HEED_BF16 ? 8e-5 : 0); }
double subnormal_half_step(heed_dtype dtype) { return dtype == HEED_F16 ? 0x1p-25 : dtype == HEED_BF16 ? 0x1p-134 : 0; }

// The error that rounding to the dtype alone may cause at x.
double half_ulp(heed_dtype dtype, double x) {
    if (x == 0 || !std::isfinite(x)) return 0;
    const int mantissa_bits = dtype == HEED_F16 ? 11 : dtype == HEED_BF16 ? 8 : 24;
    return std::ldexp(1.0, std::ilogb(x) - mantissa_bits);
}

// The c and e of the bounds.
double logit_factor(const Attention &a) {
    return std::max(1.0, std::sqrt(static_cast<double>(a.head_dim)) / 5) + (a.int8_kv ? 1 : 0);
}
double weight_roundings(const Attention &a) { return (a.int8_kv ? 1 : 0) + (a.dropout_p > 0 ? 2 : 0); }

std::string text(const char *format, double a, double b, double c) {
    char buffer[160];
    std::snprintf(buffer, sizeof(buffer), format, a, b, c);
    return buffer;
}

class Comparison {
public:
    Comparison(const Attention &a, const Reference &ref) : a_(a), ref_(ref) {}

    Verdict verdict;

    void complain(const std::string &what) {
        if (verdict.ok) verdict.complaint = what;
        verdict.ok = false;
    }

    std::string where(int32_t b, int32_t i, int32_t h) const {
        return " at batch " + std::to_string(b) + ", query " + std::to_string(i) + ", head " + std::to_string(h);
    }

    // error / bound, also where either is no number.
    static double ratio(double got, double ref, double bound) {
        if (std::isnan(ref)) return std::isnan(got) ? 0 : INFINITY;
        if (std::isinf(ref)) return got == ref ? 0 : INFINITY;
        const double error = std::fabs(got - ref);
        if (error == 0) return 0;
        return error <= DBL_MAX && bound > 0 ? error / bound : INFINITY;
    }

    // A code times its scale is a float, which no type of 16 bits holds. The weight that is rounded was 1 +- 2^-23, so
    // that the last bits of the product differ: half-way between two numbers either of them is right.
    double half_way(double ref) const {
        return std::max(half_ulp(a_.dtype, ref), subnormal_half_step(a_.dtype)) + std::fabs(ref) * 0x1p-22;
    }

    // The bound of element d of the row r at `ref`.
    double bound_of(const double *ref, int32_t d, size_t r) const {
        const double rounding = ref_.weight_rounding[static_cast<size_t>(ref + d - ref_.out.data())];
        return out_bound(a_, ref[d], ref_.max_logit[r], ref_.max_v[r], rounding);
    }

    void row(int32_t b, int32_t i, int32_t h, const float *out, const float *lse) {
        const auto r = static_cast<size_t>(a_.lse_index(b, h, i));
        if (ref_.num_visible[r] == 0) return empty_row(b, i, h, out, lse);
        const double *ref = ref_.out.data() + a_.out_index(b, i, h);
        const bool one_key = ref_.num_visible[r] == 1 && a_.sink.empty() && a_.dropout_p == 0;
        const bool exact = one_key || ref_.num_kept[r] == 0;
        for (int32_t d = 0; d < a_.head_dim_v; d++) {
            const double got = out[d], rounded = round_to(a_.dtype, static_cast<float>(ref[d]));
            const bool nearest = one_key && a_.int8_kv && a_.rounds_weights && std::isfinite(rounded);
            const double expected = one_key && !nearest ? rounded : ref[d];
            // A visible infinity: its weight may have been flushed to 0, and 0 * inf is NaN.
            if (std::isinf(ref[d]) && !std::isfinite(got)) continue;
            const double bound = nearest ? half_way(ref[d]) : exact ? 0 : bound_of(ref, d, r);
            const double off = ratio(got, expected, bound);
            verdict.out_ratio = std::max(verdict.out_ratio, off);
            if (std::isfinite(ref[d])) {
                verdict.max_error = std::max(verdict.max_error, std::fabs(got - ref[d]));
                squares_ += (got - ref[d]) * (got - ref[d]);
                elements_++;
            }
            if (off > 1) {
                complain(text("out is %.9g, the reference %.9g, the bound %.3g", got, ref[d], bound) + where(b, i, h) +
                         ", d " + std::to_string(d) + (exact ? " (one key or all dropped: exact)" : ""));
            }
        }
        if (lse == nullptr) return;
        const double off = ratio(*lse, ref_.lse[r], lse_bound(a_, ref_.lse[r], ref_.max_logit[r]));
        verdict.lse_ratio = std::max(verdict.lse_ratio, off);
        if (off > 1) {
            complain(text("lse is %.9g, the reference %.9g, error / bound %.3g", *lse, ref_.lse[r], off) +
                     where(b, i, h));
        }
    }

    void empty_row(int32_t b, int32_t i, int32_t h, const float *out, const float *lse) {
        for (int32_t d = 0; d < a_.head_dim_v; d++) {
            if (out[d] != 0 || std::signbit(out[d])) {
                complain(text("out is %.9g in a row without keys; it must be +0", out[d], 0, 0) + where(b, i, h));
            }
        }
        const auto expected = static_cast<float>(ref_.lse[static_cast<size_t>(a_.lse_index(b, h, i))]);
        if (lse != nullptr && *lse != expected) {
            complain(text("lse is %.9g in a row without keys; it must be %g", *lse, expected, 0) + where(b, i, h));
        }
    }

    // Where there are outputs enough, the errors are held against the baseline's.
    void baseline() {
        if (!needs_baseline(a_) || std::isnan(ref_.naive_max_error)) return;
        double largest = 0;
        for (const double x : ref_.out) {
            if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
        }
        const double floor = half_ulp(a_.dtype, largest), rms = elements_ > 0 ? std::sqrt(squares_ / elements_) : 0;
        const double slack = a_.dtype == HEED_F32 ? 1.5 : 1, max_slack = a_.dtype == HEED_F32 ? 3
                                                                         : a_.rounds_weights  ? 2
                                                                                              : 1;
        hold_against("root mean square", rms, ref_.naive_rms_error, floor, slack, &verdict.rms_ratio);
        hold_against("largest", verdict.max_error, ref_.naive_max_error, floor, max_slack, &verdict.max_ratio);
    }

    void hold_against(const std::string &what, double error, double naive, double floor, double slack,
                      double *ratio_of) {
        const double allowed = slack * std::max(naive, floor);
        *ratio_of = allowed > 0 ? error / allowed : 0;
        if (*ratio_of > 1) {
            complain("the " + what +
                     text(" error is %.3g, the naive baseline's %.3g; %.3g is allowed", error, naive, allowed));
        }
    }

    void mistrust(const Trust &trust) {
        int64_t elements = 0, zeros = 0;
        double low = 0, high = 0, bound = 0;
        bool all_exact = true;
        for (int32_t b = 0; b < a_.batch; b++) {
            for (int32_t i = 0; i < a_.q_len_of(b); i++) {
                for (int32_t h = 0; h < a_.num_heads; h++) {
                    const auto r = static_cast<size_t>(a_.lse_index(b, h, i));
                    if (ref_.num_visible[r] == 0) continue;
                    all_exact = all_exact && (ref_.num_visible[r] == 1 || ref_.num_kept[r] == 0);
                    const double *ref = ref_.out.data() + a_.out_index(b, i, h);
                    for (int32_t d = 0; d < a_.head_dim_v; d++) {
                        if (!std::isfinite(ref[d])) continue;
                        elements++;
                        zeros += ref[d] == 0;
                        low = std::min(low, ref[d]);
                        high = std::max(high, ref[d]);
                        bound = std::max(bound, bound_of(ref, d, r));
                    }
                }
            }
        }
        if (all_exact || elements == 0) return;
        if (trust.range && 2 * zeros > elements) complain("MISTRUSTED: the reference is mostly zero");
        if (trust.range && high - low < 100 * bound) {
            complain(
                text("MISTRUSTED: the outputs are in %.3g..%.3g, under 100 times the bound %.3g", low, high, bound));
        }
        if (!trust.every_key_shows) return;
        for (const double effect : ref_.key_effect) {
            if (effect >= 0 && effect * 1024 < 1) {
                complain(
                    text("MISTRUSTED: a change of a visible v by Vmax is at most %.3g of the bound", effect, 0, 0));
                return;
            }
        }
    }

private:
    const Attention &a_;
    const Reference &ref_;
    double squares_ = 0, elements_ = 0;  // of the errors of out
};

}  // namespace

std::string Verdict::summary() const {
    return "error / allowed: out" + text(" %.3f, lse %.3f", out_ratio, lse_ratio, 0) +
           text("; against the baseline: rms %.3f, largest %.3f", rms_ratio, max_ratio, 0);
}

bool needs_baseline(const Attention &a) { return a.num_outputs() >= 4096 && a.num_rows() >= 64; }

double out_bound(const Attention &a, double ref, double max_logit, double max_v, double weight_rounding) {
    const double lost_weights = a.kv_len * subnormal_half_step(a.dtype) * max_v;
    return relative_rounding(a.dtype) * std::fabs(ref) + subnormal_half_step(a.dtype) +
           (8 + weight_roundings(a) + logit_factor(a) * max_logit) * eps * max_v +
           (a.rounds_weights ? rounding_of_weights(a.dtype) * weight_rounding + lost_weights : 0);
}

double random_sum_bound(double sizes, double squares) {
    return std::min(sizes, 6 / std::sqrt(3.0) * std::sqrt(squares));
}

double rounding_bound(heed_dtype dtype, double x) {
    return relative_rounding(dtype) * std::fabs(x) + subnormal_half_step(dtype);
}

double lse_bound(const Attention &a, double ref, double max_logit) {
    return 8 * eps * std::max(1.0, std::fabs(ref)) + logit_factor(a) * max_logit * eps;
}

double softcapped_lse_bound(double logit) { return (4 + 4 * 0.5) * eps * std::fabs(logit); }

double mean_bound(double variance, int32_t n, double sample_bound) {
    return 4 * std::sqrt(variance / n) + sample_bound;
}

double constant_v_bound(double v) { return 16 * eps * std::fabs(v); }

double flushed_exp_bound(int64_t kv_len, double max_v) {
    return static_cast<double>(FLT_MIN) * static_cast<double>(kv_len) * max_v;
}

Verdict verdict_of(const Attention &a, const Reference &ref, const std::vector<float> &out,
                   const std::vector<float> &lse, const Trust &trust) {
    Comparison comparison(a, ref);
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t i = 0; i < a.q_len_of(b); i++) {
            for (int32_t h = 0; h < a.num_heads; h++) {
                const float *lse_row = lse.empty() ? nullptr : lse.data() + a.lse_index(b, h, i);
                comparison.row(b, i, h, out.data() + a.out_index(b, i, h), lse_row);
            }
        }
    }
    comparison.baseline();
    comparison.mistrust(trust);
    return comparison.verdict;
}

}  // namespace heed_reference
