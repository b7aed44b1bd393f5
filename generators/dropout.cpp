#include "dropout.h"

namespace heed {

using namespace Halide;

namespace {

Expr low(const Expr &x) { return cast<uint32_t>(x); }
Expr high(const Expr &x) { return cast<uint32_t>(x >> 32); }

constexpr uint32_t multiplier[2] = {0xd2511f53u, 0xcd9e8d57u};
constexpr uint32_t key_step[2] = {0x9e3779b9u, 0xbb67ae85u};
constexpr int rounds = 10;

}  // namespace

DropoutStream DropoutStream::of(const Expr &seed, const Expr &offset) {
    return {low(seed), high(seed), low(offset), high(offset)};
}

std::array<Expr, 4> philox_words(const DropoutStream &stream, const Expr &counter) {
    std::array<Expr, 4> c = {low(counter), high(counter), stream.offset_lo, stream.offset_hi};
    for (uint32_t round = 0; round < rounds; round++) {
        Expr product0 = widening_mul(c[0], Expr(multiplier[0])), product1 = widening_mul(c[2], Expr(multiplier[1]));
        Expr key0 = stream.seed_lo + Expr(round * key_step[0]), key1 = stream.seed_hi + Expr(round * key_step[1]);
        c = {high(product1) ^ c[1] ^ key0, low(product1), high(product0) ^ c[3] ^ key1, low(product0)};
    }
    return c;
}

Expr philox_word(const Expr &seed_lo, const Expr &seed_hi, const Expr &offset_lo, const Expr &offset_hi,
                 const Expr &e) {
    const std::array<Expr, 4> words = philox_words({seed_lo, seed_hi, offset_lo, offset_hi}, e >> 2);
    Expr within = low(e) & 3;
    return select(within == 0, words[0], within == 1, words[1], within == 2, words[2], words[3]);
}

Expr dropout_keeps(const Expr &word, const Expr &threshold) { return high(threshold) == 0 && word >= low(threshold); }

}  // namespace heed
