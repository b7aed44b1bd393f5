#include "bench/options.h"

#include <fnmatch.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <sstream>

#include "bench/element_types.h"

namespace heed_bench {

namespace {

bool matches(const std::string &filter, const std::string &name) {
    std::istringstream patterns(filter);
    for (std::string pattern; std::getline(patterns, pattern, ',');) {
        if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) {
            return true;
        }
    }
    return filter.empty();
}

}  // namespace

Options parse_options(int argc, char **argv) {
    Options o;
    CLI::App app{"Attention on the named cases, checked once against fp64, with the machine's ceilings."};
    app.failure_message(CLI::FailureMessage::help);
    app.footer("Any --benchmark_* is for Google Benchmark.");
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->always_capture_default();
    app.add_option("--threads", o.threads, "threads per call and per ceiling")->check(CLI::Range(1, 1024));
    app.add_option("--rounds", o.rounds, "times that every case comes round, in mixed order; minima count")
        ->check(CLI::Range(1, 1000000));
    app.add_option("--min-time", o.min_time, "seconds per case and round, at least one call")
        ->check(CLI::Range(1e-6, 1e6));
    app.add_option("--filter", o.filter, "cases by name, A,B,...; patterns as in file names: d4k_*");
    app.add_option("--suite", o.suite, "one suite only")
        ->check(CLI::IsMember({"main", "rag", "logits", "layouts", "masks", "small", "decode", "lengths"}));
    const auto set_dtypes = [&](const std::vector<std::string> &names) {
        o.dtypes.clear();
        for (const std::string &name : names) o.dtypes.push_back(dtype_of(name));
    };
    app.add_option_function<std::vector<std::string>>("--dtype", set_dtypes, "element types, A,B,...; default: f32")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::IsMember({"f32", "f16", "bf16"}));
    app.add_option_function<std::string>(
           "--kv", [&](const auto &) { o.int8_kv = true; }, "int8 keys and values")
        ->check(CLI::IsMember({"i8"}));
    app.add_option("--kernels", o.kernels,
                   "best, the kernel that the plan chooses; all, every kernel that serves the case; or names A,B,...");
    app.add_option("--isa", o.isa, "that instruction set's version of the chosen kernel: x86_64, avx2, avx512, ...");
    const auto set_pages = [&](const std::string &name) {
        o.pages = name == "huge" ? Pages::huge : name == "4k" ? Pages::small : Pages::standard;
    };
    app.add_option_function<std::string>("--pages", set_pages, "memory of the tensors; default: standard")
        ->check(CLI::IsMember({"standard", "4k", "huge"}));
    app.add_option("--json", o.json, "file for results, machine and ceilings");
    app.add_flag("--list", o.list, "print the cases and leave");
    app.add_flag("--serve", o.serve, "answer requests on stdin instead, for ./dev bench --peers");
    app.allow_extras();
    try {
        app.parse(argc, argv);
        o.benchmark_flags = app.remaining();
        for (const std::string &flag : o.benchmark_flags) {
            if (flag.compare(0, 12, "--benchmark_") != 0) throw CLI::ExtrasError({flag});
        }
    } catch (const CLI::ParseError &error) {
        std::exit(app.exit(error) == 0 ? 0 : 2);
    }
    return o;
}

std::vector<Case> selected_cases(const Options &options) {
    std::vector<Case> cases;
    for (const Case &c : all_cases()) {
        if ((!options.suite.empty() && c.suite != options.suite) || !matches(options.filter, c.name)) {
            continue;
        }
        for (const heed_dtype dtype : options.dtypes) {
            cases.push_back(in_types(c, dtype, options.int8_kv ? HEED_I8 : dtype));
        }
    }
    return cases;
}

}  // namespace heed_bench
