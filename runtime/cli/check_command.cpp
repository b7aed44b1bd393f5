#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "commands.h"
#include "element.h"
#include "heed/heed.hpp"
#include "reference.h"
#include "tolerance.h"

namespace heed_cli {
namespace {

float element(const Array &array, heed_dtype dtype, int64_t index) {
    return dtype == HEED_F32 ? array.as<float>()[index] : heed_test::from_bits(dtype, array.as<uint16_t>()[index]);
}

// Packed [extent 0, .., extent 3] from a tensor of that index order.
std::vector<float> packed(const Array &array, heed_dtype dtype, const heed_layout &layout, const int32_t (&extent)[4]) {
    std::vector<float> values;
    values.reserve(static_cast<size_t>(array.size()));
    const int64_t *stride = layout.stride;
    for (int64_t b = 0; b < extent[0]; b++) {
        for (int64_t s = 0; s < extent[1]; s++) {
            for (int64_t h = 0; h < extent[2]; h++) {
                for (int64_t d = 0; d < extent[3]; d++) {
                    const int64_t index = b * stride[0] + s * stride[1] + h * stride[2] + d * stride[3];
                    values.push_back(element(array, dtype, index));
                }
            }
        }
    }
    return values;
}

template <typename T>
std::vector<T> values_of(const Case &c, const char *name) {
    if (!c.has(name)) return {};
    const Array &array = c.arrays.at(name);
    return std::vector<T>(array.as<T>(), array.as<T>() + array.size());
}

void copy_score_tensors(const Case &c, heed_test::Attention &a) {
    const heed_problem &p = c.problem;
    if (p.has_mask) {
        a.mask.used = true;
        std::copy_n(p.mask_shape, 4, a.mask.shape.begin());
        a.mask.data = c.arrays.at("mask").data;
    }
    if (p.has_bias) {
        const Array &bias = c.arrays.at("bias");
        a.bias.used = true;
        std::copy_n(p.bias_shape, 4, a.bias.shape.begin());
        for (int64_t n = 0; n < bias.size(); n++) a.bias.data.push_back(element(bias, p.bias_dtype, n));
    }
}

// The case in the reference's terms.
heed_test::Attention attention_of(const Case &c) {
    const heed_problem &p = c.problem;
    heed_test::Attention a;
    static_cast<heed_test::Shape &>(a) = {p.batch,      p.num_heads, p.num_kv_heads, p.max_q_len,
                                          p.max_kv_len, p.head_dim,  p.head_dim_v};
    a.dtype = p.dtype;
    a.position = p.position;
    a.causal = p.causal;
    a.window_left = p.window_left;
    a.window_right = p.window_right;
    a.scale = p.scale;
    a.softcap = p.softcap;
    a.mask_true_hides = p.mask_true_hides;
    a.alibi_symmetric = p.alibi_symmetric;
    a.q = packed(c.arrays.at("q"), p.dtype, p.q_layout, {p.batch, p.max_q_len, p.num_heads, p.head_dim});
    a.k = packed(c.arrays.at("k"), p.dtype, p.k_layout, {p.batch, p.max_kv_len, p.num_kv_heads, p.head_dim});
    a.v = packed(c.arrays.at("v"), p.dtype, p.v_layout, {p.batch, p.max_kv_len, p.num_kv_heads, p.head_dim_v});
    a.kv_lens = values_of<int32_t>(c, "kv_lens");
    a.q_offsets = values_of<int32_t>(c, "q_offsets");
    a.sink = values_of<float>(c, "sink");
    a.alibi_slopes = values_of<float>(c, "alibi_slopes");
    copy_score_tensors(c, a);
    return a;
}

// The largest error of `out`, infinite where only one side is NaN, and the bound of the element where it is.
struct Worst {
    double error = 0, bound = 0;
};

Worst worst_of(const heed_test::Attention &a, const heed_test::Reference &reference, const std::vector<float> &out) {
    Worst worst;
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t i = 0; i < a.q_len; i++) {
            for (int64_t h = 0; h < a.num_heads; h++) {
                const auto row = static_cast<size_t>(a.lse_index(b, h, i));
                for (int64_t d = 0; d < a.head_dim_v; d++) {
                    const auto at = static_cast<size_t>(a.out_index(b, i, h) + d);
                    const double expected = reference.out[at];
                    double error = std::fabs(out[at] - expected);
                    if (std::isnan(out[at]) != std::isnan(expected)) error = std::numeric_limits<double>::infinity();
                    if (!(error > worst.error)) continue;
                    worst = {error, heed_test::out_bound(a, expected, reference.max_logit[row], reference.max_v[row])};
                }
            }
        }
    }
    return worst;
}

void require_reference(const heed_problem &p) {
    if (p.q_storage != HEED_Q_DENSE || p.kv_storage != HEED_KV_CONTIGUOUS || p.kv_dtype != p.dtype ||
        p.dropout_p != 0) {
        throw heed::Error(HEED_UNSUPPORTED, "heed check has a reference for q_storage \"dense\", kv_storage "
                                            "\"contiguous\", kv_dtype as dtype and dropout.p 0 only");
    }
}

}  // namespace

int check_case(const Options &options) {
    const Case c = read_case(options.case_dir);
    const heed_problem &p = c.problem;
    const Execution execution = execute(c, options);
    require_reference(p);
    const heed_test::Attention a = attention_of(c);
    const heed_test::Reference reference = heed_test::compute_reference(a, false);
    const std::vector<float> out =
        packed(execution.out, p.dtype, p.out_layout, {p.batch, p.max_q_len, p.num_heads, p.head_dim_v});
    const std::vector<float> lse(execution.lse.as<float>(), execution.lse.as<float>() + execution.lse.size());
    // The data is the caller's: it need not prove anything about the kernel.
    const heed_test::Trust trust{false, false};
    const heed_test::Verdict verdict = heed_test::judge(a, reference, out, lse, trust);
    const Worst worst = worst_of(a, reference, out);
    std::printf("kernel   %s\n", execution.kernel.empty() ? "none, the problem is empty" : execution.kernel.c_str());
    std::printf("out      largest error %.3g, its bound %.3g; largest error / bound %.3f\n", worst.error, worst.bound,
                verdict.out_ratio);
    std::printf("lse      largest error / bound %.3f\n", verdict.lse_ratio);
    std::printf("verdict  %s\n", verdict.ok ? "good" : ("WRONG: " + verdict.complaint).c_str());
    return verdict.ok ? exit_ok : exit_internal;
}

}  // namespace heed_cli
