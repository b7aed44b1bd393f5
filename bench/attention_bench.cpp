// heed_bench: kernels of the kernel table on the named cases through the public API, timed by Google Benchmark.
// Rounds are interleaved over the cases and minima kept, because machines are noisy; each result is checked against
// fp64 before it is timed and set against ceilings of the same run, measured before and after.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "bench/entry.h"
#include "bench/kernel_names.h"
#include "bench/report_json.h"
#include "bench/server.h"

namespace heed_bench {
namespace {

struct Bench {
    Run run;
    DramReader reader;
    std::vector<std::unique_ptr<Workload>> workloads;
    std::vector<std::unique_ptr<Entry>> entries;
};

// Names of the kernels to try on a case, "" for the plan's own choice.
std::vector<std::string> kernels_to_try(const Case &c, const Options &options) {
    std::vector<std::string> kernels;
    if (options.kernels == "best") {
        if (options.isa.empty()) return {""};
        try {
            return {kernel_for_isa(heed::Plan(make_problem(c, options.threads)).kernel_name(), options.isa)};
        } catch (const heed::Error &) {
            return {""};  // no kernel serves the case
        }
    }
    if (options.kernels != "all") {
        std::istringstream names(options.kernels);
        for (std::string name; std::getline(names, name, ',');) {
            kernels.push_back(name);
        }
        return kernels;
    }
    return cpu_kernels(options.isa);
}

// Checks a case that is ready to run and enters it, decode cases warm and cold.
void check_and_enter(std::unique_ptr<Workload> workload, Bench &bench) {
    const Case &c = workload->problem_case();
    const CheckResult check = workload->check();
    std::printf("%-22s %-7s %-52s max error %.2e, rms %.2e, %.3f of the bound%s\n", c.name.c_str(),
                types_name(c).c_str(), workload->kernel().c_str(), check.max_error, check.rms, check.bound_ratio,
                check.bound_ratio <= 1 ? "" : "  WRONG");
    std::fflush(stdout);
    for (const bool cold : {false, true}) {
        if (!cold || c.kind == CaseKind::decode) {
            bench.entries.push_back(std::make_unique<Entry>(make_entry(*workload, cold, check, bench.reader)));
        }
    }
    bench.workloads.push_back(std::move(workload));
}

// A kernel that cannot serve the case is noted, unless all kernels were asked for.
void add_workload(const Case &c, const std::string &kernel, const Arena &arena, Bench &bench) {
    const Options &options = bench.run.options;
    try {
        check_and_enter(std::make_unique<Workload>(c, kernel, options.threads, arena), bench);
    } catch (const heed::Error &error) {
        if (options.kernels != "all") bench.run.skipped.push_back({c.name, error.what(), false});
    } catch (const std::runtime_error &error) {
        bench.run.skipped.push_back({c.name, error.what(), true});
    }
}

void time_entry(benchmark::State &state, Entry &entry, const Ceilings &ceilings) {
    if (isatty(STDERR_FILENO) != 0) {
        std::fprintf(stderr, "\r%-60s\r", display_name(entry.result).c_str());
    }
    try {
        while (state.KeepRunningBatch(entry.calls_per_sample)) {
            state.SetIterationTime(entry.sample());
        }
    } catch (const std::exception &error) {
        state.SkipWithError(error.what());
        return;
    }
    const Standing s = standing(entry.result, ceilings);
    state.counters[s.unit] = s.rate;
    state.counters["share"] = s.share();
}

// One line per case when its last round is done.
class Progress : public benchmark::BenchmarkReporter {
public:
    bool ReportContext(const Context &) override { return true; }
    void ReportRuns(const std::vector<benchmark::BenchmarkReporter::Run> &runs) override {
        if (runs.front().run_type == benchmark::BenchmarkReporter::Run::RT_Aggregate) {
            return;
        }
        double best = std::numeric_limits<double>::infinity();
        for (const auto &run : runs) {
            best = std::min(best, run.error_occurred ? best : run.GetAdjustedRealTime());
        }
        std::printf("%-70s %10.4f ms in the best round%s%s\n", runs.front().run_name.function_name.c_str(), best,
                    runs.front().error_occurred ? ": " : "", runs.front().error_message.c_str());
        std::fflush(stdout);
    }
};

void run_benchmarks(Bench &bench) {
    const Options &options = bench.run.options;
    for (const auto &entry : bench.entries) {
        std::string name =
            display_name(entry->result) + "/" + types_name(entry->result.problem_case) + "/" + entry->result.kernel;
        std::replace(name.begin(), name.end(), ' ', '/');
        const auto body = [e = entry.get(), &bench](benchmark::State &state) {
            time_entry(state, *e, bench.run.ceilings);
        };
        benchmark::RegisterBenchmark(name.c_str(), body)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->MinTime(options.min_time)
            ->Repetitions(options.rounds);
    }
    std::vector<std::string> flags = {"heed_bench", "--benchmark_enable_random_interleaving=true"};
    flags.insert(flags.end(), options.benchmark_flags.begin(), options.benchmark_flags.end());
    std::vector<char *> argv;
    for (std::string &flag : flags) {
        argv.push_back(flag.data());
    }
    int argc = static_cast<int>(argv.size());
    benchmark::Initialize(&argc, argv.data());
    Progress progress;
    const CpuSeconds cpu = cpu_seconds();
    const double start = wall_seconds();
    benchmark::RunSpecifiedBenchmarks(&progress);
    const double machine_seconds = (wall_seconds() - start) * static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
    const CpuSeconds after = cpu_seconds();
    const double foreign = (after.machine - cpu.machine) - (after.process - cpu.process);
    bench.run.foreign_cpu = std::max(0.0, foreign / machine_seconds);
    benchmark::Shutdown();
}

// 0, or 1 when a result is wrong or nothing ran.
int run_all(const Options &options) {
    const std::vector<Case> cases = selected_cases(options);
    if (cases.empty()) {
        throw std::invalid_argument("no case matches");
    }
    if (options.list) {
        for (const Case &c : cases) {
            std::printf("%-5s %-7s %s\n", c.suite.c_str(), types_name(c).c_str(), c.name.c_str());
        }
        return 0;
    }
    restrict_process(options.threads);
    Bench bench{{machine_facts(), options, {}, 0, {}, {}}, DramReader(options.threads), {}, {}};
    bench.run.ceilings = measure_ceilings(options.threads);
    print_ceilings(bench.run.ceilings);
    Demand demand;
    for (const Case &c : cases) {
        demand.include(c);
    }
    const Arena arena(demand, options.pages);
    for (const Case &c : cases) {
        for (const std::string &kernel : kernels_to_try(c, options)) {
            add_workload(c, kernel, arena, bench);
        }
    }
    run_benchmarks(bench);
    keep_larger(bench.run.ceilings, measure_ceilings(options.threads));
    bool good = !bench.entries.empty();
    for (const auto &entry : bench.entries) {
        if (!entry->result.seconds.empty()) {  // a --benchmark_filter may have left it out
            good = good && entry->result.check.bound_ratio <= 1;
            bench.run.results.push_back(entry->result);
        }
    }
    for (const Skipped &skipped : bench.run.skipped) {
        good = good && !skipped.failed;
    }
    print_table(bench.run);
    if (!options.json.empty()) {
        write_json(bench.run, options.json);
    }
    return good ? 0 : 1;
}

}  // namespace
}  // namespace heed_bench

int main(int argc, char **argv) {
    try {
        const heed_bench::Options options = heed_bench::parse_options(argc, argv);
        if (options.serve) {
            heed_bench::restrict_process(options.threads);
            return heed_bench::serve(options);
        }
        return heed_bench::run_all(options);
    } catch (const std::invalid_argument &error) {
        std::fprintf(stderr, "heed_bench: %s\n", error.what());
        return 2;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "heed_bench: %s\n", error.what());
        return 1;
    }
}
