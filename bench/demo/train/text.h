// A text as characters, in two parts: one to learn from, one held out.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace heed_train {

// `count` pieces of `length` characters, and the character after each: [count, length] both.
struct Batch {
    std::vector<int32_t> inputs, targets;
};

class Text {
public:
    // Lines that begin with # are left out. The last tenth of the text is held out.
    explicit Text(const std::string &path);

    int32_t num_symbols() const { return static_cast<int32_t>(symbols_.size()); }
    const std::vector<int32_t> &learned() const { return learned_; }
    const std::vector<int32_t> &held_out() const { return held_out_; }
    std::string decode(const std::vector<int32_t> &characters) const;
    int32_t index_of(char symbol) const;

    // Pieces of the learned part from random places.
    Batch sample(int32_t count, int32_t length, std::mt19937_64 *random) const;
    // Piece after piece of the held-out part, as many as fit.
    Batch held_out_pieces(int32_t length) const;

    // Nats per character of the held-out part under the bigrams of the learned one, whose counts are mixed with those
    // of single characters by Witten and Bell's rule (IEEE Trans. Information Theory 37(4), 1991).
    double bigram_loss() const;

private:
    std::string symbols_;
    std::vector<int32_t> learned_, held_out_;
};

}  // namespace heed_train
