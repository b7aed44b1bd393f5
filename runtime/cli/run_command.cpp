#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/cli/commands.h"
#include "runtime/cli/output_files.h"
#include "runtime/reference/case_sequences.h"
#include "runtime/reference/problem_json.h"

namespace heed_cli {

int print_template() {
    const std::string problem = heed_reference::write_problem_json(heed_reference::read_problem_json("{}"));
    std::printf("%s\n", nlohmann::json::parse(problem).dump(2).c_str());
    return exit_ok;
}

int run_case(const Options &options) {
    remove_outputs(options.case_path);
    const Case c = heed_reference::read_case(options.case_path);
    const Execution execution = execute(c, options);
    write_outputs(options.case_path, execution.out, execution.lse);
    const heed_problem &p = c.problem;
    const double flops = 2.0 * static_cast<double>(visible_pairs(c)) * (double{1} * p.head_dim + p.head_dim_v);
    std::printf("kernel   %s\n", execution.kernel.empty() ? "none, the problem is empty" : execution.kernel.c_str());
    std::printf("time     %.3f ms, the fastest of %d\n", execution.seconds * 1e3, options.repeat);
    std::printf("speed    %.2f GFLOP/s over visible pairs\n", flops / execution.seconds * 1e-9);
    return exit_ok;
}

}  // namespace heed_cli
