// Mixed calls from many threads on shared plans, each thread with its own tensors and workspaces: every result has the
// bits of a call alone, and memory does not grow.
#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "runtime/reference/element.h"
#include "tests/random/solve.h"
#include "tests/support/amx_emulator.h"

// Bytes of the heap in use: a sanitizer that is linked defines it.
extern "C" __attribute__((weak)) size_t
__sanitizer_get_current_allocated_bytes();  // NOLINT(bugprone-reserved-identifier)

namespace {

using namespace heed_test;
using Clock = std::chrono::steady_clock;

constexpr int32_t num_threads = 8, num_problems = 24;
constexpr double warm_up = 0.2;  // of the time
// Pages of stacks and of the allocator that are touched late. One byte lost per call is more within minutes.
constexpr int64_t most_growth = 2 << 20;

// Resident memory, or under a sanitizer the heap: a sanitizer keeps shadows and histories of its own, which grow.
int64_t memory_bytes() {
    if (&__sanitizer_get_current_allocated_bytes != nullptr) {
        return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
    }
    long pages = 0;
    FILE *const file = std::fopen("/proc/self/statm", "r");
    if (file == nullptr || std::fscanf(file, "%*s %ld", &pages) != 1) pages = 0;
    if (file != nullptr) std::fclose(file);
    return int64_t{pages} * sysconf(_SC_PAGESIZE);
}

// The bytes of an output from its first to its last element, with the gaps between.
class Output {
public:
    explicit Output(const heed_tensor &tensor)
        : data_(tensor.data), bytes_(static_cast<size_t>(tensor.size * element_bytes(tensor.dtype))) {}
    void forget() const {
        if (bytes_ > 0) std::memset(data_, 0xff, bytes_);
    }
    void remember() {
        expected_.resize(bytes_);
        if (bytes_ > 0) std::memcpy(expected_.data(), data_, bytes_);
    }
    bool as_remembered() const { return bytes_ == 0 || std::memcmp(expected_.data(), data_, bytes_) == 0; }

private:
    void *data_;
    size_t bytes_;
    std::vector<unsigned char> expected_;
};

// One problem with one thread's data.
class Work {
public:
    Work(const RandomProblem &problem, uint64_t thread)
        : attention_(data_of(problem, thread)), call_(attention_, problem.options) {
        set_problem(problem, &call_.problem);
        if (call_.prepare() != HEED_OK) fail();
        outputs_ = {Output(call_.args.out), Output(call_.args.lse)};
        call_.args.num_threads = 1;
        if (call_.execute() != HEED_OK) fail();
        for (Output &output : outputs_) output.remember();
    }

    const heed_plan *plan() const { return call_.plan(); }
    const heed_problem &problem() const { return call_.problem; }
    bool large() const { return heed_plan_workspace_bytes(plan()) > 0; }

    bool runs_as_alone(const heed_plan *shared, int32_t threads) {
        for (const Output &output : outputs_) output.forget();
        call_.args.num_threads = threads;
        if (heed_execute(shared, &call_.args) != HEED_OK) return false;
        for (const Output &output : outputs_) {
            if (!output.as_remembered()) return false;
        }
        return true;
    }

    // Without a workspace it is refused, and nothing is written.
    bool is_refused(const heed_plan *shared) {
        for (const Output &output : outputs_) output.forget();
        heed_args args = call_.args;
        args.workspace_bytes = 0;
        return heed_execute(shared, &args) == HEED_WORKSPACE_TOO_SMALL && std::strlen(heed_last_error()) > 0 &&
               call_.outputs_untouched();
    }

private:
    static Attention data_of(RandomProblem problem, uint64_t thread) {
        problem.data_seed += thread;
        return attention_of(problem);
    }
    [[noreturn]] void fail() const {
        std::printf("a problem that was right before fails: %s\n", heed_last_error());
        std::exit(1);
    }

    Attention attention_;
    Call call_;
    std::vector<Output> outputs_;
};

// Problems that the reference confirms.
std::vector<RandomProblem> choose_problems(uint64_t seed) {
    std::vector<RandomProblem> problems;
    const std::vector<TableKernel> kernels = supported_kernels();
    for (; !kernels.empty() && problems.size() < num_problems; seed++) {
        RandomProblem problem = draw_problem(seed, kernels);
        problem.max_threads = 4;
        problem.options.num_threads = 4;
        const Solution solution = solve(problem);
        if (solution.kind == Solution::wrong) {
            std::printf("seed %llu: %s\n", 0ull + seed, solution.words.c_str());
            std::exit(1);
        }
        if (solution.kind == Solution::right && solution.needed_kernel) problems.push_back(problem);
    }
    return problems;
}

struct Tally {
    std::atomic<int64_t> calls{0}, wrong{0};
    std::atomic<bool> stop{false};
};

bool one_call(Rng *rng, Work *work, const heed_plan *shared) {
    const int32_t kind = rng->below(20);
    if (kind == 0) {
        heed_plan *plan = nullptr;
        const heed_status status = heed_plan_create(&work->problem(), &plan);
        heed_plan_destroy(plan);
        return status == HEED_OK;
    }
    if (kind == 1 && work->large()) return work->is_refused(shared);
    return work->runs_as_alone(shared, rng->between(1, 4));
}

void run_thread(uint64_t index, std::vector<std::unique_ptr<Work>> *mine,
                const std::vector<std::unique_ptr<Work>> *first, Tally *tally) {
    Rng rng(index);
    while (!tally->stop) {
        const auto n = static_cast<size_t>(rng.below(static_cast<int32_t>(mine->size())));
        const bool good = one_call(&rng, (*mine)[n].get(), (*first)[n]->plan());
        tally->calls++;
        if (!good && tally->wrong++ == 0) std::printf("wrong: problem %zu: %s\n", n, heed_last_error());
    }
}

int soak(double seconds) {
    const std::vector<RandomProblem> problems = choose_problems(0);
    if (problems.empty()) {
        std::printf("no kernel of the table runs here\n");
        return 1;
    }
    std::vector<std::vector<std::unique_ptr<Work>>> work(num_threads);
    for (size_t t = 0; t < num_threads; t++) {
        for (const RandomProblem &problem : problems) work[t].push_back(std::make_unique<Work>(problem, t));
    }
    Tally tally;
    std::vector<std::thread> threads;
    for (size_t t = 0; t < num_threads; t++) threads.emplace_back(run_thread, t, &work[t], &work[0], &tally);
    const auto wait = [](double span) { std::this_thread::sleep_for(std::chrono::duration<double>(span)); };
    wait(seconds * warm_up);
    const int64_t warm = memory_bytes();
    wait(seconds * (1 - warm_up));
    const int64_t end = memory_bytes();
    tally.stop = true;
    for (std::thread &thread : threads) thread.join();
    const bool grown = end - warm > most_growth;
    std::printf("%lld calls on %zu shared plans from %d threads in %.0f s: %lld wrong; memory %.1f MiB warm, %.1f "
                "MiB at the end%s\n",
                0ll + tally.calls, problems.size(), num_threads, seconds, 0ll + tally.wrong,
                static_cast<double>(warm) / (1 << 20), static_cast<double>(end) / (1 << 20), grown ? ": it grows" : "");
    return tally.wrong == 0 && !grown ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    double minutes = 30;
    CLI::App app{"Mixed calls from many threads on shared plans."};
    app.add_option("--minutes", minutes)->capture_default_str()->check(CLI::Range(0.01, 1e5));
    CLI11_PARSE(app, argc, argv);
    emulate_amx();
    return soak(60 * minutes);
}
