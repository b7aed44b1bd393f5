#include "tests/support/gradients.h"

#include <algorithm>
#include <cmath>

#include "runtime/reference/reference.h"
#include "runtime/reference/tolerance.h"

namespace heed_test {
namespace {

constexpr double eps = 0x1p-23, flushed = 0x1p-126;

double factor_rounding(heed_dtype type) { return type == HEED_F32 ? 0 : 1.01 * (type == HEED_F16 ? 0x1p-11 : 0x1p-8); }

struct Dot {
    double sum = 0, size = 0;
};

template <typename A, typename B>
Dot dot(const A *a, const B *b, int32_t n) {
    double sum = 0, squares = 0;
    for (int32_t d = 0; d < n; d++) {
        const double product = static_cast<double>(a[d]) * static_cast<double>(b[d]);
        sum += product;
        squares += product * product;
    }
    return {sum, std::max(std::fabs(sum), 4 * std::sqrt(squares))};
}

struct Logit {
    double value, slope;  // slope: of the logit over scale * q.k
};

class Solver {
public:
    Solver(const Attention &a, const GradientInputs &in, const Reference &ref, heed_dtype factors,
           GradientReference *result)
        : a_(a), in_(in), ref_(ref), factor_rounding_(factor_rounding(factors)),
          factor_step_(factors == HEED_F16 ? 0x1p-25 : 0), value_(result->value), bound_(result->bound),
          scale_(std::isnan(a.scale) ? 1 / std::sqrt(static_cast<double>(a.head_dim)) : static_cast<double>(a.scale)),
          factor_(std::max(1.0, std::sqrt(static_cast<double>(a.head_dim)) / 5)) {
        for (Gradients *g : {&value_, &bound_}) {
            g->dq.assign(a.q.size(), 0);
            g->dk.assign(a.k.size(), 0);
            g->dv.assign(a.v.size(), 0);
            g->dbias.assign(a.bias.data.size(), 0);
            g->dsink.assign(a.sink.size(), 0);
        }
    }

    void row(int32_t b, int32_t h, int32_t i) {
        const std::vector<uint8_t> visible = visible_keys(a_, b, h, i);
        const int64_t g = h / a_.group_size(), out_index = a_.out_index(b, i, h);
        const auto r = static_cast<size_t>(a_.lse_index(b, h, i));
        const double lse = in_.lse[r], *dout = in_.dout.data() + out_index;
        if (ref_.num_visible[r] == 0) return;
        const Dot delta = dot(dout, in_.out.data() + out_index, a_.head_dim_v);
        const double weight_error = 8 + factor_ * ref_.max_logit[r] + std::fabs(lse);
        const double kept_scale = a_.dropout_p < 1 ? 1 / (1 - static_cast<double>(a_.dropout_p)) : 0;
        for (int32_t j = 0; j < a_.kv_len; j++) {
            if (!visible[static_cast<size_t>(j)]) continue;
            const Logit x = logit(b, h, i, j);
            const double p = std::exp(x.value - lse), kept = dropout_keeps(a_, b, h, i, j) ? kept_scale : 0;
            Dot dp = dot(dout, a_.v_row(b, j, g), a_.head_dim_v);
            dp.sum *= kept;
            dp.size *= kept;
            const double grad = p * (dp.sum - delta.sum), sizes = std::fabs(dp.sum) + std::fabs(delta.sum);
            const double error = p * eps * ((weight_error + 16) * sizes + dp.size + delta.size) + flushed * sizes;
            add_values(b, h, j, dout, p * kept, (p * eps * (weight_error + 8) + flushed) * kept);
            add_scores(b, h, i, j, grad * x.slope * scale_,
                       error * std::fabs(scale_) *
                           (a_.softcap > 0 ? std::fabs(temperature(b, h, i)) : std::fabs(x.slope)));
            if (!a_.bias.used) continue;
            const auto at = static_cast<size_t>(a_.bias.index(b, h, i, j));
            value_.dbias[at] += grad;
            bound_.dbias[at] += error + 8 * eps * std::fabs(grad);
        }
        if (a_.sink.empty()) return;
        const double p = std::exp(static_cast<double>(a_.sink[static_cast<size_t>(h)]) - lse);
        value_.dsink[static_cast<size_t>(h)] -= p * delta.sum;
        bound_.dsink[static_cast<size_t>(h)] += p * eps * (weight_error * std::fabs(delta.sum) + delta.size);
    }

private:
    const Attention &a_;
    const GradientInputs &in_;
    const Reference &ref_;
    const double factor_rounding_, factor_step_;
    Gradients &value_, &bound_;
    const double scale_, factor_;

    double temperature(int32_t b, int32_t h, int32_t i) const {
        const double of_head = a_.temperature.empty() ? 1 : double{a_.temperature[static_cast<size_t>(h)]};
        const auto p = static_cast<double>(std::max<int64_t>(a_.position_of(b, i), 0));
        const double intervals = std::floor((p + a_.temperature_shift) / a_.temperature_interval);
        return of_head * (1 + double{a_.temperature_growth} * std::log(1 + intervals));
    }

    Logit logit(int32_t b, int32_t h, int32_t i, int32_t j) const {
        double slope = temperature(b, h, i);
        double x = slope * scale_ * dot(a_.q_row(b, i, h), a_.k_row(b, j, h / a_.group_size()), a_.head_dim).sum;
        if (a_.softcap > 0) {
            const double tanh = std::tanh(x / a_.softcap);
            x = a_.softcap * tanh;
            slope *= 1 - tanh * tanh;
        }
        if (a_.bias.used) x += static_cast<double>(a_.bias.at(b, h, i, j));
        if (!a_.alibi_slopes.empty()) {
            x += double{a_.alibi_slopes[static_cast<size_t>(h)]} * static_cast<double>(a_.alibi_distance(b, i, j));
        }
        return {x, slope};
    }

    void add_values(int32_t b, int32_t h, int32_t j, const double *dout, double weight, double error) {
        const auto first = static_cast<size_t>(a_.v_index(b, j, h / a_.group_size()));
        error += factor_rounding_ * weight + factor_step_;
        for (int32_t d = 0; d < a_.head_dim_v; d++) {
            value_.dv[first + static_cast<size_t>(d)] += weight * dout[d];
            bound_.dv[first + static_cast<size_t>(d)] += error * std::fabs(dout[d]);
        }
    }

    void add_scores(int32_t b, int32_t h, int32_t i, int32_t j, double grad, double error) {
        const int64_t g = h / a_.group_size();
        const float *const q = a_.q_row(b, i, h), *const k = a_.k_row(b, j, g);
        const auto of_q = static_cast<size_t>(a_.q_index(b, i, h)), of_k = static_cast<size_t>(a_.k_index(b, j, g));
        error += (8 * eps + factor_rounding_) * std::fabs(grad) + factor_step_ * std::fabs(scale_);
        for (size_t d = 0; d < static_cast<size_t>(a_.head_dim); d++) {
            value_.dq[of_q + d] += grad * static_cast<double>(k[d]);
            value_.dk[of_k + d] += grad * static_cast<double>(q[d]);
            bound_.dq[of_q + d] += error * std::fabs(static_cast<double>(k[d]));
            bound_.dk[of_k + d] += error * std::fabs(static_cast<double>(q[d]));
        }
    }
};

}  // namespace

GradientReference compute_gradients(const Attention &a, const GradientInputs &inputs, heed_dtype factors) {
    const Reference ref = compute_reference_as_held(a, false);
    GradientReference result;
    Solver solver(a, inputs, ref, factors, &result);
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (int32_t i = 0; i < a.q_len_of(b); i++) solver.row(b, h, i);
        }
    }
    Gradients &value = result.value, &bound = result.bound;
    const auto round = [](heed_dtype dtype, const std::vector<double> &of, std::vector<double> *to) {
        for (size_t n = 0; n < of.size(); n++) (*to)[n] += rounding_bound(dtype, of[n]);
    };
    round(a.dtype, value.dq, &bound.dq);
    round(a.dtype, value.dk, &bound.dk);
    round(a.dtype, value.dv, &bound.dv);
    round(a.bias_dtype, value.dbias, &bound.dbias);
    return result;
}

}  // namespace heed_test
