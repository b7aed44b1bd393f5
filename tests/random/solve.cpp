#include "tests/random/solve.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/reference/kernel_facts.h"
#include "runtime/reference/reference.h"
#include "runtime/reference/tolerance.h"
#include "tests/support/device.h"

namespace heed_test {
namespace {

bool same_bits(const std::vector<float> &x, const std::vector<float> &y) {
    return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin(), [](float a, float b) {
               return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b));
           });
}

// By the registry's words alone.
bool serves(const TableKernel &kernel, const RandomProblem &problem) {
    const Attention &a = problem.settings;
    const heed_kernel_info &info = kernel.info;
    uint32_t features = 0;
    if (problem.mask) features |= HEED_FEATURE_MASK;
    if (problem.bias) features |= HEED_FEATURE_BIAS;
    if (problem.alibi) features |= HEED_FEATURE_ALIBI;
    if (a.softcap > 0 || problem.temperature || a.temperature_growth != 0) features |= HEED_FEATURE_SOFTCAP;
    if (a.dropout_p > 0) features |= HEED_FEATURE_DROPOUT;
    const bool dims = kernel.any_head_dim() ? std::max(a.head_dim, a.head_dim_v) <= kernel.most_head_dim()
                                            : info.head_dim == a.head_dim && info.head_dim_v == a.head_dim_v;
    const CallOptions &o = problem.options;
    return info.supported && dims && info.dtype == a.dtype && info.kv_dtype == a.kv_dtype() && kernel.has(features) &&
           kernel.serves(o.kv_storage) && (o.kernel.empty() || o.kernel == kernel.name);
}

bool may_be_refused(const RandomProblem &problem) {
    const std::vector<TableKernel> kernels = all_kernels();
    return std::none_of(kernels.begin(), kernels.end(),
                        [&](const TableKernel &kernel) { return serves(kernel, problem); });
}

class Solver {
public:
    explicit Solver(const RandomProblem &problem) : problem_(problem), a_(attention_of(problem)) {}

    Solution solve() {
        Call rear(a_, CallOptions(problem_.options).with_flush(Flush::rear));
        if (!prepare(&rear) || !execute(&rear)) return solution_;
        Call front(a_, CallOptions(problem_.options).with_flush(Flush::front));
        if (!prepare(&front)) return solution_;
        front.args.num_threads = 1;
        if (!execute(&front)) return solution_;
        solution_.out = rear.out();
        solution_.lse = rear.lse();
        if (!same_bits(front.out(), solution_.out) || !same_bits(front.lse(), solution_.lse)) {
            return complain("other bits on one thread, flush with the front guard page");
        }
        a_.rounds_weights = rounds_weights(solution_.kernel);
        // What a random problem proves is not known before: it may see one key only.
        const Verdict verdict =
            verdict_of(a_, compute_reference(a_, false), solution_.out, solution_.lse, Trust{false, false});
        if (!verdict.ok) return complain(verdict.complaint);
        solution_.kind = Solution::right;
        return solution_;
    }

private:
    const Solution &complain(const std::string &words) {
        solution_.kind = Solution::wrong;
        solution_.words = words;
        return solution_;
    }

    bool prepare(Call *call) {
        set_problem(problem_, &call->problem);
        const heed_status status = call->prepare();
        if (status == HEED_OK) {
            solution_.kernel = call->kernel();
            solution_.needed_kernel = a_.num_rows() > 0 && a_.kv_len > 0;
            return true;
        }
        const std::string said = heed_last_error();
        if (status == HEED_UNSUPPORTED && !said.empty() && may_be_refused(problem_)) {
            solution_.kind = Solution::refused;
        } else {
            complain(std::string("the plan says ") + heed_status_name(status) + ": " + said);
        }
        return false;
    }

    bool execute(Call *call) {
        const heed_status status = call->execute();
        if (status != HEED_OK) {
            complain(std::string("execute says ") + heed_status_name(status) + ": " + heed_last_error());
        } else if (!problem_.options.kernel.empty() && call->kernel() != problem_.options.kernel) {
            complain("another kernel ran: " + call->kernel());
        } else if (!call->canaries_intact()) {
            complain("written outside of the outputs");
        } else {
            return true;
        }
        return false;
    }

    const RandomProblem &problem_;
    Attention a_;
    Solution solution_;
};

}  // namespace

Solution solve(const RandomProblem &problem) {
    try {
        return Solver(problem).solve();
    } catch (const std::exception &error) {
        Solution thrown;
        thrown.words = std::string("thrown: ") + error.what();
        return thrown;
    }
}

}  // namespace heed_test
