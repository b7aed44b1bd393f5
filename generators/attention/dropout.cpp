#include "generators/attention/dropout.h"

namespace heed {

using namespace Halide;

namespace {

Expr low(const Expr &x) { return cast<uint32_t>(x); }
Expr high(const Expr &x) { return cast<uint32_t>(x >> 32); }
Expr wide(const Expr &x) { return cast<uint64_t>(x); }
Expr low_lane(const Expr &x) { return x & wide(Expr(0xffffffffu)); }

constexpr uint32_t multiplier[2] = {0xd2511f53u, 0xcd9e8d57u};
constexpr uint32_t key_step[2] = {0x9e3779b9u, 0xbb67ae85u};
constexpr int rounds = 10;

}  // namespace

DropoutStream DropoutStream::of(const Expr &seed, const Expr &offset) {
    return {low(seed), high(seed), low(offset), high(offset), false};
}

DropoutStream DropoutStream::on_device(const Expr &seed, const Expr &offset) {
    DropoutStream stream = of(seed, offset);
    stream.in_words = true;
    return stream;
}

std::array<Expr, 4> philox_words(const DropoutStream &stream, const Expr &counter) {
    const auto lower = [&](const Expr &x) { return stream.in_words ? low(x) : low_lane(x); };
    const auto upper = [&](const Expr &x) { return stream.in_words ? high(x) : x >> 32; };
    const auto held = [&](const Expr &word) { return stream.in_words ? word : wide(word); };
    std::array<Expr, 4> c = {lower(counter), upper(counter), held(stream.offset_lo), held(stream.offset_hi)};
    for (uint32_t round = 0; round < rounds; round++) {
        Expr product0 = wide(c[0]) * wide(Expr(multiplier[0])), product1 = wide(c[2]) * wide(Expr(multiplier[1]));
        Expr key0 = held(stream.seed_lo + Expr(round * key_step[0]));
        Expr key1 = held(stream.seed_hi + Expr(round * key_step[1]));
        c = {upper(product1) ^ c[1] ^ key0, lower(product1), upper(product0) ^ c[3] ^ key1, lower(product0)};
    }
    for (Expr &word : c) word = low(word);
    return c;
}

Expr keeps_any(const Expr &threshold) { return high(threshold) == 0; }

Expr keeps_word(const Expr &word, const Expr &threshold) { return word >= low(threshold); }

Expr dropout_keeps(const Expr &word, const Expr &threshold) {
    return keeps_any(threshold) && keeps_word(word, threshold);
}

Expr is_kept(const DropoutStream &stream, const Expr &threshold, const Expr &e) {
    const std::array<Expr, 4> words = philox_words(stream, e >> 2);
    Expr within = low(e) & 3;
    return dropout_keeps(select(within == 0, words[0], within == 1, words[1], within == 2, words[2], words[3]),
                         threshold);
}

}  // namespace heed
