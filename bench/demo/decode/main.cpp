// Incremental decoding through Heed's layers with 8, 4, 2 and 1 heads of keys and values: time per step against the
// bytes of the cache.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "bench/ceilings.h"
#include "bench/demo/decode/decoder.h"
#include "bench/demo/decode/result.h"
#include "bench/machine.h"

namespace heed_decode {
namespace {

struct Options {
    Sizes sizes;
    heed_device device = HEED_CPU;
    std::string out;
};

Options parse(int argc, char **argv) {
    Options options;
    Sizes &sizes = options.sizes;
    CLI::App app{"Incremental decoding with 8, 4, 2 and 1 heads of keys and values."};
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->always_capture_default();
    const auto set_device = [&](const std::string &name) {
        options.device = name == "cuda" ? HEED_CUDA : HEED_CPU;
        sizes.dtype = name == "cuda" ? HEED_F16 : HEED_F32;
    };
    app.add_option_function<std::string>("--device", set_device,
                                         "cuda: in f16, on the first GPU; exit status 3 without one; default: cpu")
        ->check(CLI::IsMember({"cpu", "cuda"}));
    app.add_option("--out", options.out, "file for the results, as JSON");
    app.add_option("--batch", sizes.batch)->check(CLI::Range(1, 1 << 20));
    app.add_option("--prompt", sizes.prompt_len)->check(CLI::Range(1, 1 << 20));
    app.add_option("--steps", sizes.steps)->check(CLI::Range(1, 1 << 20));
    app.add_option("--threads", sizes.threads)->check(CLI::Range(1, 1024));
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        std::exit(app.exit(error) == 0 ? 0 : 2);
    }
    return options;
}

using heed_bench::wall_seconds;

std::vector<float> random_tokens(const Sizes &sizes, int32_t q_len) {
    return normal(static_cast<size_t>(sizes.batch) * static_cast<size_t>(q_len * sizes.d_model), 1, 7);
}

// Each step's input is the previous step's output, brought back to unit size as a layer norm would.
void next_token(std::vector<float> &x) {
    double squares = 0;
    for (const float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
    const auto factor = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(x.size())));
    for (float &value : x) value *= factor;
}

Result run(const Device &device, const Sizes &sizes, const std::vector<HeadWeights> &weights, int32_t num_kv_heads) {
    constexpr int32_t chunk = Decoder::max_q_len;
    Decoder decoder(device, sizes, weights, num_kv_heads);
    Result result = {};
    result.num_kv_heads = num_kv_heads;
    double start = wall_seconds();
    for (int32_t done = 0; done < sizes.prompt_len; done += chunk) {
        const int32_t q_len = std::min(chunk, sizes.prompt_len - done);
        std::vector<float> x = random_tokens(sizes, q_len);
        decoder.forward(x, q_len);
    }
    result.prompt_seconds = wall_seconds() - start;
    std::vector<float> x = random_tokens(sizes, 1);
    result.step_ms = result.attention_ms = INFINITY;
    for (int32_t step = 0; step < sizes.steps; step++) {
        next_token(x);
        start = wall_seconds();
        decoder.forward(x, 1);
        result.step_ms = std::min(result.step_ms, (wall_seconds() - start) * 1e3);
        result.attention_ms = std::min(result.attention_ms, decoder.attention_seconds() * 1e3);
    }
    for (const float value : x) {
        if (!std::isfinite(value)) throw std::runtime_error("the decoder's output is not finite");
    }
    // The fastest step is one of the first: they read the prompt.
    result.cache_gigabytes = decoder.cache_bytes() * 1e-9 * sizes.prompt_len / (sizes.prompt_len + sizes.steps);
    return result;
}

void print(const Sizes &sizes, const std::vector<Result> &results, double bandwidth) {
    std::printf("\n  kv heads   cache GB   prompt s   ms/step   us/token   attention ms   cache GB/s   of %.0f GB/s\n",
                bandwidth);
    for (const Result &r : results) {
        const double rate = r.cache_gigabytes / r.attention_ms * 1e3;
        std::printf("  %8d   %8.3f   %8.2f   %7.2f   %8.1f   %12.2f   %10.1f   %9.0f%%\n", r.num_kv_heads,
                    r.cache_gigabytes, r.prompt_seconds, r.step_ms, r.step_ms * 1e3 / sizes.batch, r.attention_ms, rate,
                    100 * rate / bandwidth);
    }
    const Result &many = results.front(), &one = results.back();
    std::printf(
        "\n  %d to %d heads of keys and values: a step is %.1f times faster, attention %.1f times, for %.1f times "
        "fewer bytes.\n  The paper's decoder on a TPUv2: %.0f to %.1f us a token, %.0f times.\n",
        many.num_kv_heads, one.num_kv_heads, many.step_ms / one.step_ms, many.attention_ms / one.attention_ms,
        many.cache_gigabytes / one.cache_gigabytes, paper_multi_head_us, paper_multi_query_us,
        paper_multi_head_us / paper_multi_query_us);
}

// GB/s at which the device can read a cache, as far as it is known: what it does now.
double read_gbps(const Device &device, const Options &options) {
    if (device.kind() == HEED_CUDA) return device.copy_gbps(options.sizes.prompt_len > 1024 ? 1 << 30 : 1 << 20);
    double best = 0;
    for (const heed_bench::DramRead &read : heed_bench::dram_read_gbps(options.sizes.threads)) {
        best = std::max(best, read.gbps);
    }
    return best;
}

// What plot.py draws.
void write_results(const std::string &path, const Sizes &sizes, const std::vector<Result> &results, double bandwidth) {
    nlohmann::ordered_json json = {{"batch", sizes.batch},
                                   {"bandwidth_gbps", bandwidth},
                                   {"paper_us", {paper_multi_head_us, paper_multi_query_us}},
                                   {"results", nlohmann::ordered_json::array()}};
    for (const Result &r : results) {
        json["results"].push_back({{"kv_heads", r.num_kv_heads},
                                   {"prompt_seconds", r.prompt_seconds},
                                   {"step_ms", r.step_ms},
                                   {"attention_ms", r.attention_ms},
                                   {"cache_gigabytes", r.cache_gigabytes}});
    }
    std::ofstream file(path);
    file << json.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
    std::printf("  results: %s\n", path.c_str());
}

void run_all(const Options &options) {
    const Sizes &sizes = options.sizes;
    const Device device(options.device);
    std::printf(
        "Heed demo: incremental decoding on %s\n"
        "  %d attention layers, d_model %d, %d heads of %d, %s; %d sequences, %d tokens of prompt, %d steps, %d "
        "threads\n",
        device.name().c_str(), sizes.num_layers, sizes.d_model, sizes.num_heads, sizes.head_dim,
        sizes.dtype == HEED_F32 ? "f32" : "f16", sizes.batch, sizes.prompt_len, sizes.steps, sizes.threads);
    std::fflush(stdout);
    std::vector<HeadWeights> weights;
    for (int32_t i = 0; i < sizes.num_layers; i++) weights.emplace_back(sizes, static_cast<uint64_t>(i));
    std::vector<Result> results;
    double bandwidth = 0;
    for (const int32_t num_kv_heads : {8, 4, 2, 1}) {
        bandwidth = std::max(bandwidth, read_gbps(device, options));
        results.push_back(run(device, sizes, weights, num_kv_heads));
    }
    print(sizes, results, bandwidth);
    if (!options.out.empty()) write_results(options.out, sizes, results, bandwidth);
}

}  // namespace
}  // namespace heed_decode

int main(int argc, char **argv) {
    try {
        heed_decode::run_all(heed_decode::parse(argc, argv));
        return 0;
    } catch (const heed_decode::NoDevice &error) {
        std::fprintf(stderr, "heed_decode: HEED_NO_DEVICE: --device cuda: %s\n", error.what());
        return 3;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "heed_decode: %s\n", error.what());
        return 1;
    }
}
