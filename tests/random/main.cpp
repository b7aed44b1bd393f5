// Random problems against the reference, half with seeds that are always the same, half with new ones.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>

#include "tests/random/child.h"
#include "tests/random/shrink.h"
#include "tests/random/solve.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/dump.h"

namespace {

using namespace heed_test;

constexpr char purpose[] =
    "Draws problems, half with the seeds 0, 1, ..., half with new ones, solves each with the linked kernels and "
    "compares "
    "with a reference in fp64. The first one that fails is made as small as it gets and written as a case for `heed "
    "check`.";

// A problem takes some 10 ms; where instructions are emulated or sanitizers watch, a hundred times that.
constexpr unsigned seconds_per_problem = 120;

struct Options {
    int64_t problems = 1000;
    bool fixed = false, no_shrink = false, digest = false;
    std::optional<uint64_t> seed;
    std::string cases = "random_failures";
};

struct Progress {
    uint64_t seed = 0;
    char kernel[256] = {};
    int64_t right = 0, refused = 0;
    bool isa_ran[16] = {};
};

Options parse(int argc, char **argv) {
    Options options;
    CLI::App app{purpose};
    app.option_defaults()->always_capture_default();
    app.add_option("--problems", options.problems)->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
    app.add_option("--seed", options.seed, "this problem only");
    app.add_flag("--fixed", options.fixed, "no new seeds")->envname("HEED_FIXED_SEEDS");
    app.add_option("--cases", options.cases, "folder for the failing problem");
    app.add_flag("--no-shrink", options.no_shrink, "only say which problem fails");
    app.add_flag("--digest", options.digest,
                 "a line for each problem of the fixed seeds: seed, kernel, hash of the result");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        std::exit(app.exit(error) == 0 ? 0 : 2);
    }
    return options;
}

class Test {
public:
    explicit Test(const Options &options) : options_(options), kernels_(supported_kernels()) {}

    int run() {
        if (kernels_.empty()) {
            std::printf("no kernel of the table runs here\n");
            return 1;
        }
        if (options_.seed) return all_right(*options_.seed, 1) ? 0 : 1;
        const uint64_t problems = static_cast<uint64_t>(options_.problems), fresh = options_.fixed ? 0 : problems / 2,
                       fixed = problems - fresh;
        const uint64_t first_fresh = 1'000'000 + std::random_device()() % 1'000'000'000;
        if (options_.digest) return all_right(0, fixed) ? 0 : 1;
        std::printf("seeds 0..%llu and %llu..%llu\n", fixed - 1ull, first_fresh + 0ull, first_fresh + fresh - 1ull);
        if (!all_right(0, fixed) || (fresh > 0 && !all_right(first_fresh, fresh))) return 1;
        std::printf("%lld problems right, %lld refused\n", 0ll + progress_->right, 0ll + progress_->refused);
        return enough_ran() ? 0 : 1;
    }

private:
    bool all_right(uint64_t first, uint64_t count) {
        const ChildEnd end = run_in_child(false, [&] {
            for (uint64_t seed = first; seed < first + count; seed++) {
                if (!one_right(seed)) return false;
            }
            return true;
        });
        if (!end.good) report(end.words);
        return end.good;
    }

    // In a child.
    bool one_right(uint64_t seed) {
        progress_->seed = seed;
        progress_->kernel[0] = '\0';
        alarm(seconds_per_problem);
        const RandomProblem problem = draw_problem(seed, kernels_);
        if (options_.seed) std::printf("%s\n", describe(problem).c_str());
        const Solution solution = solve(problem);
        std::snprintf(progress_->kernel, sizeof(progress_->kernel), "%s", solution.kernel.c_str());
        if (options_.digest) print_digest(seed, solution);
        if (solution.kind == Solution::wrong) {
            std::printf("%s\n", solution.words.c_str());
            return false;
        }
        progress_->right += solution.kind == Solution::right;
        progress_->refused += solution.kind == Solution::refused;
        for (const TableKernel &kernel : kernels_) {
            if (solution.needed_kernel && kernel.name == solution.kernel) progress_->isa_ran[kernel.info.isa] = true;
        }
        return true;
    }

    static void print_digest(uint64_t seed, const Solution &solution) {
        uint64_t hash = 0xcbf29ce484222325ull;
        for (const std::vector<float> *values : {&solution.out, &solution.lse}) {
            for (const float value : *values) {
                uint32_t bits = 0;
                std::memcpy(&bits, &value, sizeof(bits));
                if (value != value) bits = 0x7fc00000;
                hash = (hash ^ bits) * 0x100000001b3ull;
            }
        }
        const char *const kinds[] = {"right", "refused", "wrong"};
        std::printf("%llu %s %s %016llx\n", 0ull + seed, kinds[solution.kind], solution.kernel.c_str(), 0ull + hash);
    }

    void report(const std::string &end) {
        const uint64_t seed = progress_->seed;
        RandomProblem problem = draw_problem(seed, kernels_);
        std::printf("\nthe problem of seed %llu failed (%s): %s\nagain: heed_random_tests --seed %llu\n", 0ull + seed,
                    end.c_str(), describe(problem).c_str(), 0ull + seed);
        if (options_.no_shrink) return;
        RandomProblem on_its_kernel = problem;
        on_its_kernel.options.kernel = progress_->kernel;
        if (fails(on_its_kernel)) problem = on_its_kernel;
        if (!fails(problem)) {
            std::printf("it does not fail again on its own\n");
            return;
        }
        const RandomProblem smallest =
            shrink(problem, [this](const RandomProblem &candidate) { return fails(candidate); });
        std::printf("smallest: %s\n", describe(smallest).c_str());
        write(smallest, options_.cases + "/seed_" + std::to_string(seed) + ".safetensors");
    }

    static bool fails(const RandomProblem &problem) {
        return !run_in_child(true, [&] {
                    alarm(seconds_per_problem);
                    return solve(problem).kind != Solution::wrong;
                }).good;
    }

    static void write(const RandomProblem &problem, const std::string &path) {
        const Attention a = attention_of(problem);
        const ChildEnd end = run_in_child(false, [&] {
            const ForcedKernel forced(problem.options.kernel);
            dump_case(path, a, problem.options);
            return true;
        });
        if (!end.good) {
            std::printf("no case: %s\n", end.words.c_str());
            return;
        }
        RandomProblem as_written = problem;
        as_written.options = as_in_case(a, problem.options);
        as_written.padded_lse = as_written.padded_scores = as_written.zero_strides = as_written.shared_kv = false;
        std::printf("case: heed check %s", path.c_str());
        if (!problem.options.kernel.empty()) std::printf(" --kernel %s", problem.options.kernel.c_str());
        std::printf(" --threads %d%s\n", std::max(problem.options.num_threads, 1),
                    fails(as_written) ? "" : "  (the case, without layouts and storage, does not show it)");
    }

    // Too many refusals prove nothing: problems are drawn for kernels that are here.
    bool enough_ran() const {
        bool enough = 2 * progress_->right >= options_.problems;
        if (!enough) std::printf("too few problems ran\n");
        if (options_.problems < 20 * static_cast<int64_t>(isas_of_device().size())) return enough;
        for (const heed_isa isa : isas_of_device()) {
            const bool here = std::any_of(kernels_.begin(), kernels_.end(),
                                          [&](const TableKernel &kernel) { return kernel.info.isa == isa; });
            if (!here || progress_->isa_ran[isa]) continue;
            std::printf("no kernel of %s ran\n", isa_name(isa));
            enough = false;
        }
        return enough;
    }

    const Options options_;
    const std::vector<TableKernel> kernels_;
    const Shared<Progress> progress_;
};

}  // namespace

int main(int argc, char **argv) {
    const Options options = parse(argc, argv);
    setenv("HEED_TEST_ALL_KERNELS", "1", 1);  // plans choose from all kernels
    emulate_amx();
    return Test(options).run();
}
