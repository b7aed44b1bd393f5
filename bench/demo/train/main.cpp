// Trains a character-level decoder on an excerpt of a book, with multi-head, grouped-query and multi-query attention.
// Exits with 1 unless the loss of each on held-out text ends below a bigram model's, or with few steps below its
// start.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "bench/demo/train/model.h"

namespace heed_train {
namespace {

constexpr float highest_rate = 3e-3f;
constexpr int32_t reports = 8;

struct Options {
    int32_t steps = 400, threads = 2;
    std::string text = HEED_DEMO_TEXT, gradients;
};

Options parse(int argc, char **argv) {
    Options options;
    CLI::App app{"Trains a character-level decoder with multi-head, grouped-query and multi-query attention."};
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->always_capture_default();
    app.add_option("--steps", options.steps)->check(CLI::Range(1, 1 << 20));
    app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
    app.add_option("--text", options.text, "file to learn from");
    app.add_option("--gradients", options.gradients, "folder: write what one batch gives, and end");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        std::exit(app.exit(error) == 0 ? 0 : 2);
    }
    return options;
}

// Up over a tenth of the steps, then down along a cosine to a tenth.
float rate_of(int32_t step, int32_t steps) {
    const float warm = 0.1f * static_cast<float>(steps), at = static_cast<float>(step + 1);
    if (at < warm) return highest_rate * at / warm;
    const float done = (at - warm) / (static_cast<float>(steps) - warm + 1);
    return highest_rate * (0.55f + 0.45f * std::cos(3.14159265f * done));
}

struct Outcome {
    double trained, first_held_out, held_out, seconds_per_step;
    int64_t parameters;
    std::string sample;
};

Outcome train(const Text &text, const Options &options, int32_t num_kv_heads) {
    Sizes sizes;
    sizes.threads = options.threads;
    Model model(sizes, text.num_symbols(), num_kv_heads, 1);
    std::mt19937_64 random(2);
    const Batch held_out = text.held_out_pieces(sizes.context);
    Outcome outcome = {};
    outcome.parameters = model.num_parameters();
    outcome.first_held_out = model.loss(held_out);
    std::printf("\n%d heads of queries, %d of keys and values: %lld parameters\n  step   loss  held out\n",
                sizes.num_heads, num_kv_heads, static_cast<long long>(outcome.parameters));
    std::printf("%6d      -  %8.3f\n", 0, outcome.first_held_out);
    const auto start = std::chrono::steady_clock::now();
    std::chrono::duration<double> reporting{};
    double sum = 0;
    int32_t summed = 0;
    for (int32_t step = 0; step < options.steps; step++) {
        sum += model.train(text.sample(sizes.batch, sizes.context, &random), Adam{rate_of(step, options.steps)});
        summed++;
        if ((step + 1) * reports / options.steps == step * reports / options.steps) continue;
        const auto before = std::chrono::steady_clock::now();
        outcome.trained = sum / summed;
        outcome.held_out = model.loss(held_out);
        std::printf("%6d %6.3f  %8.3f\n", step + 1, outcome.trained, outcome.held_out);
        std::fflush(stdout);
        sum = summed = 0;
        reporting += std::chrono::steady_clock::now() - before;
    }
    const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start - reporting;
    outcome.seconds_per_step = all.count() / options.steps;
    std::vector<int32_t> prompt;
    for (const char symbol : std::string("Alice ")) prompt.push_back(text.index_of(symbol));
    outcome.sample = text.decode(model.continue_text(prompt, options.steps < 100 ? 1 : 200, &random));
    return outcome;
}

// For grouped-query attention.
int write_gradients(const Text &text, const Options &options) {
    Sizes sizes;
    sizes.threads = options.threads;
    std::mt19937_64 random(2);
    Model(sizes, text.num_symbols(), 2, 1).write_gradients(text.sample(4, sizes.context, &random), options.gradients);
    return 0;
}

int run(const Options &options) {
    const Text text(options.text);
    if (!options.gradients.empty()) return write_gradients(text, options);
    const double bigram = text.bigram_loss();
    const Sizes sizes;
    std::printf("%zu characters to learn from, %zu held out, %d symbols; bigram model on what is held out: %.3f nats\n"
                "%d blocks of width %d, %d pieces of %d characters a step, %d threads, kernels of Heed %s\n",
                text.learned().size(), text.held_out().size(), text.num_symbols(), bigram, sizes.num_layers,
                sizes.width, sizes.batch, sizes.context, options.threads, heed_version());
    std::vector<std::pair<const char *, Outcome>> outcomes;
    for (const auto &[name, num_kv_heads] : {std::pair{"multi-head", 4}, {"grouped-query", 2}, {"multi-query", 1}}) {
        outcomes.emplace_back(name, train(text, options, num_kv_heads));
    }
    std::printf("\n%-14s %10s %8s %9s %9s %8s\n", "attention", "parameters", "loss", "held out", "to bigram",
                "ms/step");
    bool right = true;
    for (const auto &[name, o] : outcomes) {
        std::printf("%-14s %10lld %8.3f %9.3f %+9.3f %8.1f\n", name, static_cast<long long>(o.parameters), o.trained,
                    o.held_out, o.held_out - bigram, 1e3 * o.seconds_per_step);
        right = right && o.held_out < (options.steps >= Options().steps ? bigram : o.first_held_out);
    }
    std::printf("multi-query against multi-head: %+.3f nats on held-out text\n\n%s\n",
                outcomes[2].second.held_out - outcomes[0].second.held_out, outcomes[0].second.sample.c_str());
    return right ? 0 : 1;
}

}  // namespace
}  // namespace heed_train

int main(int argc, char **argv) {
    try {
        return heed_train::run(heed_train::parse(argc, argv));
    } catch (const std::exception &error) {
        std::fprintf(stderr, "heed_train: %s\n", error.what());
        return 2;
    }
}
