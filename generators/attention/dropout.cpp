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
    return {low(seed), high(seed), low(offset), high(offset)};
}

// The state is held in uint64 lanes whose upper halves are 0: the widening multiplication is then one instruction
// (pmuludq) per four lanes of AVX2, with no conversion between lane widths in any round.
std::array<Expr, 4> philox_words(const DropoutStream &stream, const Expr &counter) {
    std::array<Expr, 4> c = {low_lane(counter), counter >> 32, wide(stream.offset_lo), wide(stream.offset_hi)};
    for (uint32_t round = 0; round < rounds; round++) {
        Expr product0 = c[0] * wide(Expr(multiplier[0])), product1 = c[2] * wide(Expr(multiplier[1]));
        Expr key0 = wide(stream.seed_lo + Expr(round * key_step[0]));
        Expr key1 = wide(stream.seed_hi + Expr(round * key_step[1]));
        c = {(product1 >> 32) ^ c[1] ^ key0, low_lane(product1), (product0 >> 32) ^ c[3] ^ key1, low_lane(product0)};
    }
    for (Expr &word : c) word = low(word);
    return c;
}

Expr dropout_keeps(const Expr &word, const Expr &threshold) { return high(threshold) == 0 && word >= low(threshold); }

Expr is_kept(const DropoutStream &stream, const Expr &threshold, const Expr &e) {
    const std::array<Expr, 4> words = philox_words(stream, e >> 2);
    Expr within = low(e) & 3;
    return dropout_keeps(select(within == 0, words[0], within == 1, words[1], within == 2, words[2], words[3]),
                         threshold);
}

}  // namespace heed
