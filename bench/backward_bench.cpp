// What gradients cost: heed_backward_bench THREADS DTYPE ROUNDS [CASE ...]. Times forward and backward of named cases
// in turns, by wall clock and by CPU time (of all threads, which a busy machine changes less), and prints the minima
// and their ratios. The arithmetic is 2.5 times that of forward where head_dim_v is head_dim: five products, not two.
// ROUNDS 0, for peers/backward.py: a round for each line of input, answered with the milliseconds of both.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "bench/cases.h"
#include "bench/element_types.h"
#include "bench/elements.h"
#include "bench/machine.h"
#include "heed/heed.hpp"
#include "heed/ops.h"

namespace {

using heed_bench::Case;

using heed_bench::Elements;

// About N(0,1).
Elements elements(heed_dtype dtype, int64_t count) {
    std::vector<float> numbers(static_cast<size_t>(count));
    for (size_t i = 0; i < numbers.size(); i++) numbers[i] = 1.4f * std::sin(0.7f * static_cast<float>(i % 99991));
    return {dtype, numbers};
}

struct Seconds {
    double wall = INFINITY, cpu = INFINITY;

    template <typename Call>
    void time(const Call &call) {
        const double cpu_start = process_seconds(), start = heed_bench::wall_seconds();
        heed::check(call());
        wall = std::min(wall, heed_bench::wall_seconds() - start);
        cpu = std::min(cpu, process_seconds() - cpu_start);
    }

    static double process_seconds() {
        timespec now = {};
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
        return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
    }
};

void run(const Case &c, int threads, int rounds) {
    heed_problem problem = heed_bench::make_problem(c, threads);
    problem.want_lse = true;
    const heed::Plan plan(problem);
    const Elements q = elements(c.dtype, q_layout(c).elements), k = elements(c.dtype, k_layout(c).elements),
                   v = elements(c.dtype, v_layout(c).elements), out = elements(c.dtype, out_layout(c).elements),
                   dout = out, dq = q, dk = k, dv = v,
                   lse = elements(HEED_F32, int64_t{c.batch} * c.num_heads * c.q_len);
    const heed::Workspace workspace(
        std::max(plan.workspace_bytes(), heed_attention_backward_workspace_bytes(plan.get())));
    heed::Args args;
    args.q = q.tensor();
    args.k = k.tensor();
    args.v = v.tensor();
    args.out = out.tensor();
    args.lse = lse.tensor();
    workspace.attach(args);
    heed_gradients gradients = {};
    gradients.struct_size = sizeof(gradients);
    gradients.dout = dout.tensor();
    gradients.dq = dq.tensor();
    gradients.dk = dk.tensor();
    gradients.dv = dv.tensor();
    const auto time_round = [&](Seconds *forward, Seconds *backward) {
        forward->time([&] { return heed_execute(plan.get(), &args); });
        backward->time([&] { return heed_attention_backward(plan.get(), &args, &gradients); });
    };
    Seconds forward, backward;
    std::string line;
    while (rounds == 0 && std::getline(std::cin, line)) {
        Seconds one[2];
        time_round(&one[0], &one[1]);
        std::cout << one[0].wall * 1e3 << ' ' << one[1].wall * 1e3 << std::endl;
    }
    for (int round = 0; round < rounds; round++) time_round(&forward, &backward);
    if (rounds == 0) return;
    std::printf("%-16s %-4s forward %8.2f ms (CPU %8.2f)  backward %8.2f ms (CPU %8.2f)  ratio %.2f (CPU %.2f)  %s\n",
                c.name.c_str(), heed_reference::dtype_name(c.dtype), forward.wall * 1e3, forward.cpu * 1e3,
                backward.wall * 1e3, backward.cpu * 1e3, backward.wall / forward.wall, backward.cpu / forward.cpu,
                plan.kernel_name().c_str());
}

}  // namespace

int main(int argc, char **argv) {
    int threads = 1, rounds = 0;
    heed_dtype dtype = HEED_F32;
    std::vector<std::string> names = {"p2k_gqa", "p1k_d64_full"}, all_names;
    for (const Case &c : heed_bench::all_cases()) {
        if (c.mask == heed_bench::CaseMask::none) all_names.push_back(c.name);
    }
    CLI::App app{"What gradients cost: forward and backward of named cases in turns."};
    app.add_option("THREADS", threads)->required()->check(CLI::Range(1, 1024));
    const auto set_dtype = [&](const std::string &name) { dtype = heed_bench::dtype_of(name); };
    app.add_option_function<std::string>("DTYPE", set_dtype)->required()->check(CLI::IsMember({"f32", "f16", "bf16"}));
    app.add_option("ROUNDS", rounds, "0: one for each line of input, answered with the milliseconds of both")
        ->required()
        ->check(CLI::Range(0, 1000000));
    app.add_option("CASE", names, "cases without a mask or bias")->check(CLI::IsMember(all_names));
    CLI11_PARSE(app, argc, argv);
    try {
        heed_bench::restrict_process(threads);
        for (const Case &c : heed_bench::all_cases()) {
            if (std::find(names.begin(), names.end(), c.name) == names.end()) continue;
            run(heed_bench::in_types(c, dtype, dtype), threads, rounds);
        }
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "heed_backward_bench: %s\n", error.what());
        return 1;
    }
}
