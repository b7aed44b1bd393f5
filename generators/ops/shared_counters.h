#pragma once
// Dropout on tensor cores: bits of weights in words of lanes, which share Philox's counters. A counter has four words,
// those of four neighbouring keys of a query.

#include "generators/attention/dropout.h"

namespace heed {

constexpr int keys_of_counter = 4;

// Whether rows are whole counters; else each weight has one of its own.
inline Halide::Expr shares_counters(const Halide::Expr &max_kv_len) { return max_kv_len % keys_of_counter == 0; }

inline Halide::Expr low_word(const Halide::Expr &x) { return Halide::cast<uint32_t>(x); }

// Bit n: whether element 4 * counter + n is kept.
inline Halide::Expr kept_of_counter(const DropoutStream &stream, const Halide::Expr &threshold,
                                    const Halide::Expr &counter) {
    const std::array<Halide::Expr, 4> words = philox_words(stream, counter);
    Halide::Expr bits = Halide::Expr(0u);
    for (size_t n = 0; n < words.size(); n++) {
        bits = bits | select(keeps_word(words[n], threshold), Halide::Expr(1u << n), Halide::Expr(0u));
    }
    return select(keeps_any(threshold), bits, Halide::Expr(0u));
}

}  // namespace heed
