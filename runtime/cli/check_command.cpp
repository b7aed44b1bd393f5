#include <cstdio>

#include "runtime/cli/commands.h"
#include "runtime/reference/case_verdict.h"

namespace heed_cli {

int check_case(const Options &options) {
    const Case c = heed_reference::read_case(options.case_path);
    const Execution execution = execute(c, options);
    const heed_reference::CaseVerdict result = verdict_of_case(c, execution.kernel, execution.out, execution.lse);
    const heed_reference::Verdict &verdict = result.verdict;
    std::printf("kernel   %s\n", execution.kernel.empty() ? "none, the problem is empty" : execution.kernel.c_str());
    std::printf("out      largest error %.3g, its bound %.3g; largest error / bound %.3f\n", result.worst_error,
                result.worst_bound, verdict.out_ratio);
    std::printf("lse      largest error / bound %.3f\n", verdict.lse_ratio);
    std::printf("verdict  %s\n", verdict.ok ? "good" : ("WRONG: " + verdict.complaint).c_str());
    return verdict.ok ? exit_ok : exit_internal;
}

}  // namespace heed_cli
