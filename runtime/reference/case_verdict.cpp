#include "runtime/reference/case_verdict.h"

#include <cmath>
#include <limits>

#include "runtime/reference/kernel_facts.h"
#include "runtime/reference/reference_case.h"

namespace heed_reference {
namespace {

void find_worst(const Attention &a, const Reference &reference, const std::vector<float> &out, CaseVerdict *result) {
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t i = 0; i < a.q_len_of(b); i++) {
            for (int64_t h = 0; h < a.num_heads; h++) {
                const auto row = static_cast<size_t>(a.lse_index(b, h, i));
                for (int64_t d = 0; d < a.head_dim_v; d++) {
                    const auto at = static_cast<size_t>(a.out_index(b, i, h) + d);
                    const double expected = reference.out[at];
                    double error = std::fabs(out[at] - expected);
                    if (std::isnan(out[at]) != std::isnan(expected)) error = std::numeric_limits<double>::infinity();
                    if (!(error > result->worst_error)) continue;
                    result->worst_error = error;
                    result->worst_bound = out_bound(a, expected, reference.max_logit[row], reference.max_v[row],
                                                    reference.weight_rounding[at]);
                }
            }
        }
    }
}

}  // namespace

CaseVerdict verdict_of_case(const Case &c, const std::string &kernel, const Array &out, const Array &lse) {
    Attention a = attention_of(c);
    a.rounds_weights = rounds_weights(kernel);
    const Reference reference = compute_reference_as_held(a, false);
    const std::vector<float> rows = out_rows(c, a, out);
    // The data is the caller's: it need not prove anything about the kernel.
    const Trust trust{false, false};
    CaseVerdict result;
    result.verdict = verdict_of(a, reference, rows, lse_rows(c, a, lse), trust);
    find_worst(a, reference, rows, &result);
    return result;
}

}  // namespace heed_reference
