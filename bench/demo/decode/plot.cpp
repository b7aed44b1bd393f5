#include "plot.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace heed_decode {
namespace {

constexpr double width = 640, height = 400, left = 70, right = 20, top = 70, bottom = 60;

std::string text(double x, double y, const std::string &content, const std::string &more = "") {
    char line[256];
    std::snprintf(line, sizeof(line), "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, more.c_str());
    return line + content + "</text>\n";
}

std::string number(double x, const char *format) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), format, x);
    return digits;
}

std::string bar(double x, double y, double w, double h, const std::string &colour) {
    char line[160];
    std::snprintf(line, sizeof(line), "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x,
                  y, w, h, colour.c_str());
    return line;
}

}  // namespace

void write_plot(const std::string &path, const std::vector<Result> &results, int batch, double bandwidth) {
    double most = 0;
    for (const Result &r : results) most = std::max(most, r.step_ms);
    const double plot_height = height - top - bottom, base = height - bottom;
    const double slot = (width - left - right) / static_cast<double>(results.size());
    const auto tall = [&](double ms) { return ms / most * plot_height; };

    std::string svg =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"640\" height=\"400\" font-family=\"sans-serif\" "
        "font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    svg +=
        text(left, 20, "Milliseconds per step of " + std::to_string(batch) + " sequences, by heads of keys and values");
    const double gain = results.front().step_ms / results.back().step_ms;
    const std::string paper = number(paper_multi_head_us, "%.0f") + " to " + number(paper_multi_query_us, "%.1f") +
                              " us a token, " + number(paper_multi_head_us / paper_multi_query_us, "%.0f") + " times";
    svg += text(left, 38, number(gain, "%.1f") + " times faster with the fewest; the paper on a TPUv2: " + paper,
                "fill=\"#666\"");
    for (size_t i = 0; i < results.size(); i++) {
        const Result &r = results[i];
        const double x = left + slot * (static_cast<double>(i) + 0.2), w = slot * 0.6;
        const double limit = r.cache_gigabytes / bandwidth * 1e3;
        svg += bar(x, base - tall(r.step_ms), w, tall(r.step_ms), "#b8c8dc");
        svg += bar(x, base - tall(r.attention_ms), w, tall(r.attention_ms), "#3f6fa3");
        svg += bar(x - 6, base - tall(limit) - 1, w + 12, 2, "#c0392b");
        svg += text(x + w / 2, base - tall(r.step_ms) - 6, number(r.step_ms, "%.2f"), "text-anchor=\"middle\"");
        svg += text(x + w / 2, base + 18, std::to_string(r.num_kv_heads) + (r.num_kv_heads == 1 ? " head" : " heads"),
                    "text-anchor=\"middle\"");
        svg += text(x + w / 2, base + 34, number(r.cache_gigabytes, "%.2f GB"), "text-anchor=\"middle\" fill=\"#666\"");
    }
    svg += bar(left + 330, top - 8, 12, 12, "#b8c8dc") + text(left + 348, top + 3, "projections");
    svg += bar(left + 330, top + 10, 12, 12, "#3f6fa3") + text(left + 348, top + 21, "attention alone");
    svg += bar(left + 330, top + 34, 12, 2, "#c0392b") +
           text(left + 348, top + 39, "the cache at " + number(bandwidth, "%.0f GB/s"));
    std::ofstream file(path);
    file << svg << "</svg>\n";
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace heed_decode
