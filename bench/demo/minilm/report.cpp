#include "bench/demo/minilm/report.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace minilm {
namespace {

constexpr size_t text_width = 100;

// The text over as many lines as it needs, broken at spaces.
void print_wrapped(const std::string &text, const char *indent) {
    size_t begin = 0;
    while (begin < text.size()) {
        size_t end = text.size();
        if (end - begin > text_width) {
            const size_t space = text.rfind(' ', begin + text_width);
            end = space == std::string::npos || space <= begin ? begin + text_width : space;
        }
        std::printf("%s%.*s\n", begin == 0 ? "" : indent, static_cast<int>(end - begin), text.c_str() + begin);
        begin = end < text.size() && text[end] == ' ' ? end + 1 : end;
    }
}

void print_notes(const std::vector<Run> &runs, bool with_naive) {
    std::printf(
        "\nA block: projections to q, k and v, attention, output projection; Heed's is one call of its layer API,\n"
        "whose first call with a number of tokens also makes the plan for it. Pieces are end to end: nothing is\n"
        "padded.\n");
    if (!with_naive) return;
    double largest_difference = 0, largest_value = 0;
    for (const Run &run : runs) {
        largest_difference = std::max(largest_difference, run.attention.largest_difference);
        largest_value = std::max(largest_value, run.attention.largest_value);
    }
    std::printf(
        "The naive block (projections by Eigen, three nested loops, same compiler flags, same threads) ran on the\n"
        "same batches; largest difference from Heed over every element of every layer: %.1e (values up to\n"
        "%.1f)\n",
        largest_difference, largest_value);
}

}  // namespace

void print_answers(const Assets &assets, const Matrix &sentences, const Matrix &queries, size_t best) {
    const Matrix scores = queries * sentences.transpose();
    best = std::min(best, assets.sentences.size());
    for (size_t i = 0; i < assets.queries.size(); i++) {
        const auto row = scores.row(static_cast<Eigen::Index>(i));
        std::vector<size_t> order(assets.sentences.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::partial_sort(
            order.begin(), order.begin() + static_cast<std::ptrdiff_t>(best), order.end(),
            [&](size_t a, size_t b) { return row[static_cast<Eigen::Index>(a)] > row[static_cast<Eigen::Index>(b)]; });
        std::printf("\n? %s\n", assets.queries[i].text.c_str());
        for (size_t rank = 0; rank < best; rank++) {
            std::printf("  %.2f  ", static_cast<double>(row[static_cast<Eigen::Index>(order[rank])]));
            print_wrapped(assets.sentences[order[rank]].text, "        ");
        }
    }
}

void print_runs(const std::vector<Run> &runs, double fma_peak_gflops, int threads, bool with_naive) {
    std::printf("\nAttention blocks on %d thread%s; FMA peak measured in this run: %.0f GFLOP/s\n\n", threads,
                threads == 1 ? "" : "s", fma_peak_gflops);
    std::printf("  %-10s %6s %7s %8s %9s | %9s %8s %7s | %9s %8s %7s\n", "text", "pieces", "tokens", "longest",
                "encode ms", "Heed ms", "GFLOP/s", "of peak", "naive ms", "GFLOP/s", "Heed is");
    for (const Run &run : runs) {
        const AttentionTotals &totals = run.attention;
        const double gflops = totals.flop / totals.heed_seconds / 1e9;
        std::printf("  %-10s %6zu %7zu %8zu %9.0f | %9.2f %8.1f %6.1f%% |", run.name.c_str(), run.count, run.tokens,
                    run.longest, run.encode_seconds * 1e3, totals.heed_seconds * 1e3, gflops,
                    100 * gflops / fma_peak_gflops);
        if (with_naive) {
            std::printf(" %9.1f %8.2f %6.1fx\n", totals.naive_seconds * 1e3, totals.flop / totals.naive_seconds / 1e9,
                        totals.naive_seconds / totals.heed_seconds);
        } else {
            std::printf(" %9s %8s %7s\n", "-", "-", "-");
        }
    }
    print_notes(runs, with_naive);
}

}  // namespace minilm
