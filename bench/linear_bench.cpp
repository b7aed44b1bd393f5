// Times heed_linear: heed_linear_bench ROWS DIM_IN DIM_OUT f32|f16|bf16 THREADS SECONDS. Prints the fastest call in ms.
// Weights are packed once, before calls are timed. bench/peers runs it in turns with other libraries.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "bench/element_types.h"
#include "bench/elements.h"
#include "bench/machine.h"
#include "heed/heed.hpp"

namespace {

struct Arguments {
    int32_t rows, dim_in, dim_out, threads;
    heed_dtype dtype;
    double seconds;
};

using heed_bench::Elements;

Elements elements(heed_dtype dtype, int64_t count) {
    std::mt19937 bits(7);
    std::uniform_real_distribution<float> distribution(-0.5f, 0.5f);
    std::vector<float> numbers(static_cast<size_t>(count));
    for (float &x : numbers) x = distribution(bits);
    return {dtype, numbers};
}

double fastest_ms(const Arguments &a) {
    const Elements x = elements(a.dtype, int64_t{a.rows} * a.dim_in),
                   w = elements(a.dtype, int64_t{a.dim_out} * a.dim_in), bias = elements(a.dtype, a.dim_out),
                   y = elements(a.dtype, int64_t{a.rows} * a.dim_out);
    const heed::LinearWeights packed(a.dim_in, a.dim_out, w.tensor(), bias.tensor());
    heed_linear_out out = {};
    out.num_heads = 1;
    out.head_dim = a.dim_out;
    out.out = y.tensor();
    heed_linear_args args = {};
    args.struct_size = sizeof(args);
    args.batch = 1;
    args.len = a.rows;
    args.x = x.tensor();
    args.num_outs = 1;
    args.outs = &out;
    args.execution.num_threads = a.threads;
    double best = INFINITY, spent = 0;
    constexpr double slow = 0.5;  // of shorter calls two at least: the first one wakes threads and caches
    for (int n = 0; spent < a.seconds || (n < 2 && spent < slow); n++) {
        const double start = heed_bench::wall_seconds();
        packed.run(args);
        const double seconds = heed_bench::wall_seconds() - start;
        best = std::min(best, seconds);
        spent += seconds;
    }
    return best * 1e3;
}

}  // namespace

int main(int argc, char **argv) {
    Arguments a = {};
    CLI::App app{"Times heed_linear; prints the fastest call in ms."};
    app.add_option("ROWS", a.rows)->required()->check(CLI::Range(1, 1 << 24));
    app.add_option("DIM_IN", a.dim_in)->required()->check(CLI::Range(1, 1 << 24));
    app.add_option("DIM_OUT", a.dim_out)->required()->check(CLI::Range(1, 1 << 24));
    const auto set_dtype = [&](const std::string &name) { a.dtype = heed_bench::dtype_of(name); };
    app.add_option_function<std::string>("DTYPE", set_dtype)->required()->check(CLI::IsMember({"f32", "f16", "bf16"}));
    app.add_option("THREADS", a.threads)->required()->check(CLI::Range(1, 1024));
    app.add_option("SECONDS", a.seconds)->required()->check(CLI::Range(0., 1e6));
    CLI11_PARSE(app, argc, argv);
    try {
        std::printf("%.5f\n", fastest_ms(a));
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "heed_linear_bench: %s\n", error.what());
        return 1;
    }
}
