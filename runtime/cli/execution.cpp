#include "execution.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>

#include "case_call.h"
#include "heed/heed.hpp"
#include "invalid_input.h"

namespace heed_cli {
namespace {

void force_kernel(const std::string &name) {
    const std::vector<heed_kernel_info_t> rows = heed::kernels();
    if (std::none_of(rows.begin(), rows.end(), [&](const auto &row) { return name == row.name; })) {
        throw InvalidInput("--kernel is \"" + name + "\"; it must be a name that `heed kernels` lists");
    }
    setenv("HEED_FORCE_KERNEL", name.c_str(), 1);
}

}  // namespace

Execution execute(const Case &c, const Options &options) {
    if (!options.kernel.empty()) force_kernel(options.kernel);
    heed_problem problem = c.problem;
    problem.max_threads = options.threads;
    const heed::Plan plan(problem);
    const heed::Workspace workspace = plan.make_workspace();
    Execution execution{plan.kernel_name(), make_out(c), make_lse(c), std::numeric_limits<double>::infinity()};
    heed_args args = make_args(c, execution.out, execution.lse);
    workspace.attach(args);
    for (int32_t n = 0; n < options.repeat; n++) {
        const auto start = std::chrono::steady_clock::now();
        plan.execute(args);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        execution.seconds = std::min(execution.seconds, seconds.count());
    }
    return execution;
}

}  // namespace heed_cli
