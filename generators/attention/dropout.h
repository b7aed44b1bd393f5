#pragma once
// Philox4x32-10, the counter-based generator of dropout, as Expr functions. One mask for every kernel: element e of
// the flattened [batch, num_heads, max_q_len, max_kv_len] mask is word e & 3 of counter (e >> 2, offset) under the key
// seed. All words are uint32, e is uint64; integers only, so that every ISA and vector width gives the same bits.

#include <array>

#include "Halide.h"

namespace heed {

// seed and offset of a call, halved.
struct DropoutStream {
    Halide::Expr seed_lo, seed_hi, offset_lo, offset_hi;
    // Where products of 32 bits are computed: of x86's vectors in lanes of 64 bits, whose upper halves are 0 (pmuludq,
    // with no conversion between lane widths in any round); on CUDA from words (mul.wide.u32, 4 instructions a round
    // where lanes of 64 bits take 6).
    bool in_words;

    static DropoutStream of(const Halide::Expr &seed, const Halide::Expr &offset);  // both uint64
    static DropoutStream on_device(const Halide::Expr &seed, const Halide::Expr &offset);
};

// The four words of one counter: elements 4 * counter .. 4 * counter + 3. Costs 20 widening multiplications, shared by
// all four: a kernel whose lanes run along keys should compute it once per four of them.
std::array<Halide::Expr, 4> philox_words(const DropoutStream &stream, const Halide::Expr &counter);

// Whether an element with this word is kept: word >= threshold, with threshold = round(p * 2^32) in uint64, 0..2^32 (p
// = 1 keeps none). Compares in 32 bits per lane; the 33rd bit of the threshold is a test outside the vector.
Halide::Expr dropout_keeps(const Halide::Expr &word, const Halide::Expr &threshold);
// Its two tests: that of the 33rd bit, the same for all elements, and that of an element's word.
Halide::Expr keeps_any(const Halide::Expr &threshold);
Halide::Expr keeps_word(const Halide::Expr &word, const Halide::Expr &threshold);

// Whether element e is kept. For lanes that run along query rows, where each lane has a counter of its own.
Halide::Expr is_kept(const DropoutStream &stream, const Halide::Expr &threshold, const Halide::Expr &e);

}  // namespace heed
