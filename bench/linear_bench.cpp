// Times heed_linear: heed_linear_bench ROWS DIM_IN DIM_OUT f32|f16|bf16 THREADS SECONDS. Prints the fastest call in ms.
// Weights are packed once, before calls are timed. bench/peers runs it in turns with other libraries.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "heed/heed.hpp"

namespace {

struct Arguments {
    int32_t rows, dim_in, dim_out, threads;
    heed_dtype dtype;
    double seconds;
};

// Elements of at most about 0.5 of any dtype.
class Elements {
public:
    Elements(heed_dtype dtype, int64_t count) : dtype_(dtype) {
        std::mt19937 bits(7);
        std::uniform_real_distribution<float> distribution(-0.5f, 0.5f);
        if (dtype == HEED_F32) {
            wide_.resize(static_cast<size_t>(count));
            for (float &x : wide_) x = distribution(bits);
        } else {
            narrow_.resize(static_cast<size_t>(count));
            const uint32_t half = dtype == HEED_F16 ? 0x3800 : 0x3f00;
            for (uint16_t &x : narrow_) x = static_cast<uint16_t>((bits() & 0x8000) | (half - bits() % 0x200));
        }
    }
    heed_tensor tensor() const {
        return dtype_ == HEED_F32 ? heed::tensor(wide_.data(), wide_.size())
                                  : heed::tensor(narrow_.data(), narrow_.size(), dtype_);
    }

private:
    const heed_dtype dtype_;
    std::vector<float> wide_;
    std::vector<uint16_t> narrow_;
};

double fastest_ms(const Arguments &a) {
    const Elements x(a.dtype, int64_t{a.rows} * a.dim_in), w(a.dtype, int64_t{a.dim_out} * a.dim_in),
        bias(a.dtype, a.dim_out), y(a.dtype, int64_t{a.rows} * a.dim_out);
    const heed_tensor weight = w.tensor(), bias_tensor = bias.tensor();
    heed_linear_weights *packed = nullptr;
    heed::check(heed_linear_pack(a.dtype, a.dim_in, a.dim_out, &weight, 0, &bias_tensor, &packed));
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
        heed::check(heed_linear(packed, &args));
        const double seconds = heed_bench::wall_seconds() - start;
        best = std::min(best, seconds);
        spent += seconds;
    }
    heed_linear_weights_destroy(packed);
    return best * 1e3;
}

}  // namespace

int main(int argc, char **argv) {
    Arguments a = {};
    CLI::App app{"Times heed_linear; prints the fastest call in ms."};
    app.add_option("ROWS", a.rows)->required()->check(CLI::Range(1, 1 << 24));
    app.add_option("DIM_IN", a.dim_in)->required()->check(CLI::Range(1, 1 << 24));
    app.add_option("DIM_OUT", a.dim_out)->required()->check(CLI::Range(1, 1 << 24));
    const auto set_dtype = [&](const std::string &name) {
        a.dtype = name == "f32" ? HEED_F32 : name == "f16" ? HEED_F16 : HEED_BF16;
    };
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
