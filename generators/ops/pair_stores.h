#pragma once
// Results of 16 bits in rows at addresses, of which a lane has pairs of neighbours: words, where rows begin at
// multiples of words. What of an address depends on the row is found once (a stage of the schedule): found for each
// element it takes 29 instructions, as many for 128 elements of a thread as nine steps of attention.

#include <functional>

#include "generators/common/device_memory.h"

namespace heed {

// `on` is alike for both elements of a pair, of which the first one's column is even.
inline Halide::Expr store_in_pairs(ElementType type, const Halide::Expr &column, const Halide::Expr &on,
                                   const Halide::Expr &in_words,
                                   const std::function<Halide::Expr(const Halide::Expr &)> &value_of_column,
                                   const std::function<Halide::Expr(const Halide::Expr &)> &address_of_column) {
    const Halide::Expr first = column / 2 * 2, is_first = column % 2 == 0;
    const Halide::Expr word = packed_on_device(type, value_of_column(first), value_of_column(first + 1));
    const Halide::Expr element = Halide::cast<uint16_t>(Halide::select(is_first, word, word >> 16));
    return store_at_if(on && in_words && is_first, address_of_column(first), 0, word) +
           store_at_if(on && !in_words, address_of_column(column), 0, element);
}

}  // namespace heed
