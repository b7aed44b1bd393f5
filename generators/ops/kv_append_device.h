#pragma once
// kv_append of tokens at addresses: rows are rotated, rounded to their type and then quantised.

#include "generators/ops/kv_append.h"
#include "generators/ops/moved_tokens.h"
#include "generators/ops/rotation.h"

namespace heed {

struct KvAppendDevice : MovedTokens {
    struct Part {
        Quantisation quantisation;
        Halide::RDom all;  // element of a chunk, chunk, row of a segment, segment
    };
    std::vector<Part> by_part;

    explicit KvAppendDevice(ElementType type) : MovedTokens(type) {
        for (const int width : {chunk_of(type), 1}) {
            for (const bool neighbours : {false, true}) {
                add_part(width, neighbours, (wide != 0) == (width > 1) && (interleaved != 0) == neighbours);
            }
        }
    }

private:
    // neighbours: pairs are (2n, 2n + 1), else (n, n + num_pairs).
    void add_part(int width, bool neighbours, const Expr &on) {
        const Halide::Func turned = rotated(neighbours);
        const Expr from = from_row(head, token, segment);
        const auto element = [=](const Expr &d) {
            const Expr first = d / width * width, second = is_second(neighbours, d, first);
            const Expr value = from_float(type, turned(d, 0, first, second, head, token, segment));
            return to_float(type, select(first < 2 * num_pairs, value, load_at(stored, from, d)));
        };
        Halide::RDom over(0, width, 0, row_length / width, "over_d");
        const Quantisation rows({{head, token, segment}, element, over, over.y * width + over.x});
        Halide::RDom all(0, width, 0, row_length / width, 0, select(on, max_tokens * num_heads, 0), 0, segments, "all");
        all.where(all.z < tokens_of(all.w) * num_heads);
        by_part.push_back({rows, all});
        const Expr d = all.y * width + all.x, t = all.z / num_heads, h = all.z - t * num_heads, s = all.w;
        add(store_at(to_row(h, t, s), d, rows.codes(d, h, t, s)) +
            store_at_if(d == 0, entry_word(word, s, 2), all.z, rows.scale(h, t, s)));
    }

    // Whether an element is the second one of its pair, 0 or 1; `first`: of the chunk, which is of one half.
    Expr is_second(bool neighbours, const Expr &d, const Expr &first) const {
        return neighbours ? d % 2 : Halide::cast<int32_t>(first >= num_pairs);
    }

    // Element d of a row (d, 0, first element of its chunk, is_second, row): a pair's second element is the first one
    // of the pair the other way round that is rotated the other way round. Halves: what is num_pairs elements away has
    // the same number after another address, so that neighbours are read as such.
    Halide::Func rotated(bool neighbours) const {
        using Halide::cast;
        const Expr from = from_row(head, token, segment), rotates = first < 2 * num_pairs;
        const auto halves = [=](const Halide::Type &t, const Expr &count) {
            return neighbours ? cast<uint64_t>(0) : cast<uint64_t>(count) * bytes_of(t, num_pairs);
        };
        const auto line = [=](const Expr &table) {
            const Expr at = line_of_table(table, token, segment) - halves(Halide::Float(32), second);
            return [=](const Expr &d) { return load_at_if(rotates, Halide::Float(32), at, neighbours ? d / 2 : d); };
        };
        const auto x = [=](const Expr &d, int other) {
            if (other == 0) return to_float(type, load_at(stored, from, d));
            const Expr at = from + halves(stored, 1) - halves(stored, 2 * second);
            return to_float(type, load_at_if(rotates, stored, at, neighbours ? d / 2 * 2 + 1 - d % 2 : d));
        };
        return Rotation({{first, second, head, token, segment},
                         x,
                         line(cos),
                         line(sin),
                         select(second == 0, direction, -direction),
                         fused_on_device})
            .rotated;
    }

    const Halide::Var first{"first"}, second{"second"};
};

}  // namespace heed
