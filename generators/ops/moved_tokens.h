#pragma once
// Rows of heads that go from tokens to tokens, on a device: segments of tokens at addresses, whose rows may be rotated.

#include "generators/common/device_memory.h"
#include "generators/contract/cuda_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(MoveTokensArguments, HEED_CUDA_MOVE_TOKENS)

struct MovedTokens : MoveTokensArguments, Results {
    Halide::Var head{"head"}, token{"token"}, segment{"segment"};

    explicit MovedTokens(ElementType type) : MoveTokensArguments({type}), stored(stored_type(type)), type(type) {}

protected:
    using Expr = Halide::Expr;
    const Halide::Type stored;
    const ElementType type;

    // Chunks of so many to a row, numbered through all heads and tokens of a segment: the place of one. (Halide knows a
    // place of a difference, but only the range of a remainder.)
    struct Place {
        Expr chunk, head, token;
    };
    Place place_of(const Expr &number, const Expr &row_chunks) const {
        const Expr row = number / row_chunks, token = row / num_heads;
        return {number - row * row_chunks, row - token * num_heads, token};
    }

    // The tokens of a segment; a token's row for a head, in the source and in the destination.
    Expr tokens_of(const Expr &s) const {
        return Halide::cast<int32_t>(Halide::cast<uint32_t>(entry_word(word, s, 3)));
    }
    Expr from_row(const Expr &h, const Expr &t, const Expr &s) const {
        return after(after(entry_word(word, s, 0), t, from_token), h, from_head);
    }
    Expr to_row(const Expr &h, const Expr &t, const Expr &s) const {
        return after(after(entry_word(word, s, 1), t, to_token), h, to_head);
    }
    // The first element of a token's line of a table.
    Expr line_of_table(const Expr &table, const Expr &t, const Expr &s) const {
        const Expr line = (entry_word(word, s, 3) >> 32) + Halide::cast<uint64_t>(t);
        return table + line * bytes_of(Halide::Float(32), num_pairs);
    }
};

}  // namespace heed
