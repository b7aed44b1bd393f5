// What blocks that a score function hides are worth: heed_score_bench [THREADS]. Causal self-attention over 8192 tokens
// that hold 1, 4, 16 or 64 documents (docs/examples/score/document.cpp) in turns with plain causal attention, which
// sees all tokens. A token sees its own document, so that 1/n of the logits of n documents is visible.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "bench/machine.h"
#include "heed/heed.hpp"

namespace {

constexpr int32_t len = 8192, num_heads = 4, head_dim = 64, rounds = 9;

struct Run {
    Run(int32_t documents, int32_t threads, const std::vector<float> &tokens)
        : out(tokens.size()), numbers(len), plan(problem(documents, threads)), workspace(plan.workspace_bytes()) {
        for (int32_t i = 0; i < len; i++) numbers[i] = static_cast<int32_t>(int64_t{i} * documents / len);
        args.q = args.k = args.v = heed::tensor(tokens.data(), tokens.size());
        args.out = heed::tensor(out.data(), out.size());
        args.score_buffers[0] = {numbers.data(), len, HEED_I32};
        args.score_buffers[1] = {&length, 1, HEED_I32};
        workspace.attach(args);
    }

    // 0 documents: the plain kernel.
    static heed::Problem problem(int32_t documents, int32_t threads) {
        heed::Problem p;
        p.batch = 1;
        p.num_heads = p.num_kv_heads = num_heads;
        p.head_dim = p.head_dim_v = head_dim;
        p.max_q_len = p.max_kv_len = len;
        p.causal = true;
        p.max_threads = threads;
        p.score_mod = documents == 0 ? nullptr : "document";
        return p;
    }

    void time() {
        const double start = heed_bench::wall_seconds();
        plan.execute(args);
        best = std::min(best, heed_bench::wall_seconds() - start);
    }

    std::vector<float> out;
    std::vector<int32_t> numbers;
    int32_t length = len;
    heed::Plan plan;
    heed::Workspace workspace;
    heed::Args args;
    double best = INFINITY;
};

}  // namespace

int main(int argc, char **argv) {
    int32_t threads = 1;
    CLI::App app{"What blocks that a score function hides are worth."};
    app.add_option("THREADS", threads)->check(CLI::Range(1, 1024));
    CLI11_PARSE(app, argc, argv);
    try {
        heed_bench::restrict_process(threads);
        std::vector<float> tokens(size_t{len} * num_heads * head_dim);
        for (size_t i = 0; i < tokens.size(); i++) tokens[i] = std::sin(0.1f * static_cast<float>(i % 9973));
        std::vector<std::unique_ptr<Run>> runs;
        for (const int32_t documents : {0, 1, 4, 16, 64}) {
            runs.push_back(std::make_unique<Run>(documents, threads, tokens));
        }
        for (int round = 0; round < rounds; round++) {
            for (const auto &run : runs) run->time();
        }
        std::printf("%s, %d threads, %d tokens, %d heads of %d, f32, causal\n",
                    heed_bench::machine_facts().cpu_model.c_str(), threads, len, num_heads, head_dim);
        for (const auto &run : runs) {
            std::printf("%-55s %3d documents %8.2f ms  %.3f of plain causal\n", run->plan.kernel_name().c_str(),
                        run->numbers.back() + 1, run->best * 1e3, run->best / runs[0]->best);
        }
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "heed_score_bench: %s\n", error.what());
        return 1;
    }
}
