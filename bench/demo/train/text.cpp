#include "bench/demo/train/text.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <stdexcept>

namespace heed_train {
namespace {

void add_piece(const std::vector<int32_t> &characters, size_t first, int32_t length, Batch *batch) {
    const auto begin = characters.begin() + static_cast<std::ptrdiff_t>(first);
    batch->inputs.insert(batch->inputs.end(), begin, begin + length);
    batch->targets.insert(batch->targets.end(), begin + 1, begin + 1 + length);
}

}  // namespace

Text::Text(const std::string &path) {
    std::ifstream in(path);
    if (!in) throw std::runtime_error(path + ": cannot be read");
    std::string all;
    for (std::string line; std::getline(in, line);) {
        if (line.empty() || line[0] != '#') all += line + '\n';
    }
    const std::set<char> symbols(all.begin(), all.end());
    symbols_.assign(symbols.begin(), symbols.end());
    const size_t split = all.size() / 10 * 9;
    for (size_t i = 0; i < all.size(); i++) (i < split ? learned_ : held_out_).push_back(index_of(all[i]));
}

int32_t Text::index_of(char symbol) const {
    return static_cast<int32_t>(std::lower_bound(symbols_.begin(), symbols_.end(), symbol) - symbols_.begin());
}

std::string Text::decode(const std::vector<int32_t> &characters) const {
    std::string text;
    for (const int32_t c : characters) text += symbols_[static_cast<size_t>(c)];
    return text;
}

Batch Text::sample(int32_t count, int32_t length, std::mt19937_64 *random) const {
    Batch batch;
    std::uniform_int_distribution<size_t> place(0, learned_.size() - static_cast<size_t>(length) - 1);
    for (int32_t n = 0; n < count; n++) add_piece(learned_, place(*random), length, &batch);
    return batch;
}

Batch Text::held_out_pieces(int32_t length) const {
    Batch batch;
    const auto step = static_cast<size_t>(length);
    for (size_t first = 0; first + step < held_out_.size(); first += step) add_piece(held_out_, first, length, &batch);
    return batch;
}

double Text::bigram_loss() const {
    const auto n = static_cast<size_t>(num_symbols());
    std::vector<double> single(n, 1.0), pairs(n * n), behind(n), kinds(n);  // each symbol once more than counted
    for (size_t i = 0; i + 1 < learned_.size(); i++) {
        const auto a = static_cast<size_t>(learned_[i]), b = static_cast<size_t>(learned_[i + 1]);
        single[b] += 1;
        behind[a] += 1;
        kinds[a] += pairs[a * n + b] == 0 ? 1 : 0;
        pairs[a * n + b] += 1;
    }
    const double total = static_cast<double>(learned_.size() - 1) + static_cast<double>(n);
    double loss = 0;
    for (size_t i = 0; i + 1 < held_out_.size(); i++) {
        const auto a = static_cast<size_t>(held_out_[i]), b = static_cast<size_t>(held_out_[i + 1]);
        const double seen = pairs[a * n + b] + kinds[a] * single[b] / total, all = behind[a] + kinds[a];
        loss -= std::log(all > 0 ? seen / all : single[b] / total);
    }
    return loss / static_cast<double>(held_out_.size() - 1);
}

}  // namespace heed_train
