#pragma once
// RoPE of tokens at addresses, whose elements after the rotated ones are copied: rope, and kv_copy for bytes. The
// destination may be the source itself.

#include "generators/ops/moved_tokens.h"
#include "generators/ops/rotation.h"

namespace heed {

struct RopeDevice : MovedTokens {
    struct Part {
        Halide::RDom all;  // element or pair of a chunk, number of a chunk, segment, part of a pair
        int width;
        std::vector<Rotation> rotation;  // none: elements are copied
    };
    std::vector<Part> by_part;

    explicit RopeDevice(ElementType type) : MovedTokens(type) {
        const int chunk = chunk_of(type);
        if (type != ElementType::i8) {
            add_pairs(chunk, wide != 0 && interleaved == 0, 1, 0, num_pairs);
            add_pairs(chunk / 2, wide != 0 && interleaved != 0, 2, 1, 0);
            add_pairs(1, wide == 0, select(interleaved != 0, 2, 1), 0, select(interleaved != 0, 1, num_pairs));
        }
        add_copies(chunk, wide != 0);
        add_copies(1, wide == 0);
    }

private:
    // Element (n, part) of a row is number stride * n + next * part after the first one plus `far` elements for part 1.
    void add_pairs(int width, const Expr &on, const Expr &stride, int next, const Expr &far) {
        const auto place = [=](const Expr &row, const Expr &part) {
            return row + Halide::cast<uint64_t>(part) * bytes_of(stored, far);
        };
        const auto in_row = [=](const Expr &n, const Expr &part) { return n * stride + part * next; };
        const Expr from = from_row(head, token, segment);
        const auto table = [=](const Expr &first) {
            return [=](const Expr &n) { return float_at(ElementType::f32, line_of_table(first, token, segment), n); };
        };
        const RotatedRows rows = {
            {head, token, segment},
            [=](const Expr &n, int part) { return float_at(type, place(from, part), in_row(n, part)); },
            table(cos),
            table(sin),
            direction,
            fused_on_device};
        Halide::RDom all = chunks(width, on, num_pairs / width, 2);
        by_part.push_back({all, width, {Rotation(rows)}});
        const Place at = place_of(all.y, num_pairs / width);
        const Expr n = at.chunk * width + all.x, part = all.w;
        const Expr value = by_part.back().rotation[0].rotated(n, part, at.head, at.token, all.z);
        add(store_at(place(to_row(at.head, at.token, all.z), part), in_row(n, part), from_float(type, value)));
    }

    void add_copies(int width, const Expr &on) {
        const Expr rest = row_length - 2 * num_pairs, skipped = bytes_of(stored, 2 * num_pairs);
        Halide::RDom all = chunks(width, on, rest / width, 1);
        by_part.push_back({all, width, {}});
        const Place at = place_of(all.y, rest / width);
        const Expr i = at.chunk * width + all.x;
        const Expr x = load_at(stored, from_row(at.head, at.token, all.z) + skipped, i);
        add(store_at(to_row(at.head, at.token, all.z) + skipped, i, x));
    }

    Halide::RDom chunks(int width, const Expr &on, const Expr &row_chunks, int parts_of_pair) const {
        const Expr of_token = num_heads * row_chunks;
        Halide::RDom all(0, width, 0, select(on, max_tokens * of_token, 0), 0, segments, 0, parts_of_pair, "all");
        all.where(all.y < tokens_of(all.z) * of_token);
        return all;
    }
};

}  // namespace heed
