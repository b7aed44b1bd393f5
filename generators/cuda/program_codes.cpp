// int8 keys and values: a row is codes and a scale. Codes become 16-bit numbers, exactly, on the way
// from shared memory into fragments; logits are multiplied by the scales of K, weights by those of V in units of the
// largest such product of the row: f16 keeps them as well as weights alone, whatever the range of the scales.
//
// A load of matrices gives a thread four neighbouring codes of a row where it gives two 16-bit elements. Those of K are
// columns 2 * quad, + 1, + 8 and + 9 of a fragment once Q's columns are in the order of query_column(). Those of V,
// transposed, they are two columns of two keys: two tiles of the output share 16 columns, in turns.
#include <limits>

#include "generators/attention/logits.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

// Where Q's element d is in shared memory: in each 16 the even pairs, then the odd ones.
Expr ProgramBuilder::query_column(const Expr &d) const {
    if (!has_codes) return d;
    Expr pair = d % 16 / 2;
    return d / 16 * 16 + pair % 2 * 8 + pair / 2 * 2 + d % 2;
}

// Elements 8 * column .. of a row of Q (16 bytes) to `row`.
void ProgramBuilder::store_query_chunk(const Expr &rows, const Expr &row, const Expr &column, const Expr &value) {
    if (!has_codes) {
        code.run(store_shared_fragment(chunk_at(rows, tile.rows(), shared.q_row, row, column), value));
        return;
    }
    Expr to = code.let("q_to", rows + row * shared.q_row + column / 2 * 32 + column % 2 * 8);
    Expr chunk = code.let("q_chunk", value), first = low_half(chunk), last = high_half(chunk);
    const Expr low_word = cast<uint64_t>(Expr(0xffffffffu));
    code.run(store_shared_u64(to, (first & low_word) | last << 32));
    code.run(store_shared_u64(to + 16, first >> 32 | (last & ~low_word)));
}

// Address of the scale of the sequence's first key, or of slot 0 of page 0.
Expr ProgramBuilder::scale_row(const Tensor &tensor) const {
    Expr row = tensor.address() + element_bytes(kv_head, tensor.stride(0), 4);
    if (cfg.paged) return row;
    return row + element_bytes(sequence, tensor.stride(2), 4) + element_bytes(first_key, tensor.stride(1), 4);
}

Expr ProgramBuilder::scale_at(int of_values, const Expr &buffer, const Expr &in_block) const {
    return shared_at + shared.scales + buffer * shared.scale_buffer + (of_values * tile.kv_block + in_block) * 4;
}

// Thread t those of key t of block j, 0 after the last key. The scales of K and V have the same strides.
void ProgramBuilder::load_scales(const Expr &rows, const Expr &j, const Expr &to) {
    code.when(thread < tile.kv_block, [&] {
        Expr in_rows = cfg.paged ? load_shared_u64(found_key(j, thread) + 16)
                                 : element_bytes(key_start(j) + thread, in.k_scale.stride(1), 4);
        Expr from = code.let("scale_from", rows + in_rows), there = key_start(j) + thread < kv_len;
        code.run(copy_word_async(to, from, select(there, 4, 0)));
    });
}

// For this thread's columns of logits: column e of tile n is number 2 * n + e.
std::vector<Expr> ProgramBuilder::scales_of_columns(int of_values, const Expr &buffer) {
    Expr first = code.let("scales_at", scale_at(of_values, buffer, first_key_of_warp() + quad * 2));
    std::vector<Expr> result;
    for (int n = 0; n < key_tiles; n++) {
        Expr both = code.let("scales", load_shared_u64(first + 32 * n));
        for (int e = 0; e < 2; e++) {
            result.push_back(code.let("scale", reinterpret<float>(cast<uint32_t>(both >> (32 * e)))));
        }
    }
    return result;
}

// Weights of row r times the scales of their values, in units of the largest such product so far: where one key has all
// the weight its output is exact. Scales of keys that the row does not use may be NaN.
void ProgramBuilder::scale_weights(int r, std::vector<Expr> &weights_of_row, const std::vector<Expr> &value_scales) {
    constexpr float least_unit = std::numeric_limits<float>::min(), largest_unit = 0x1p125f;  // so are reciprocals
    Expr old_unit = code.let("old_unit", value_units[r] * factors[r]), largest = maximum(old_unit, least_unit);
    for (size_t i = 0; i < weights_of_row.size(); i++) {
        const int n = static_cast<int>(i / 2), e = static_cast<int>(i % 2);
        Expr unused = is_negative_infinity(logit(r, n, e));
        if (cfg.has_dropout) unused = unused || !is_kept(r, n, e);
        Expr product = weights_of_row[i] * select(unused, 0.f, value_scales[i]);
        weights_of_row[i] = code.let("scaled_weight", product);
        largest = maximum(largest, abs(weights_of_row[i]));
    }
    Expr unit_now = over_quad(code.let("largest_weight", largest), maximum);
    Expr new_unit = code.let("new_unit", min(unit_now, largest_unit));
    Expr of_unit = code.let("of_unit", reciprocal(new_unit));
    for (Expr &weight : weights_of_row) weight = code.let("weight_in_units", weight * of_unit);
    code.set(factors, r, select(new_unit == old_unit, 1.f, old_unit * of_unit));
    code.set(value_units, r, new_unit);
}

void ProgramBuilder::multiply_key_codes(const Expr &buffer, bool q_in_registers) {
    Expr at = code.let("k_buffer", k_at + buffer * shared.k_buffer);
    for (int k = 0; k < depth / 16; k += 2) {
        std::vector<Expr> q[2];
        for (int half = 0; half < 2; half++) {
            for (int m = 0; m < tile.m_tiles; m++) q[half].push_back(q_fragment(m, k + half, q_in_registers));
        }
        for (int n = 0; n < key_tiles; n += 2) {
            Expr words = code.let("k_codes", load_matrices(at + (n * 8 * shared.k_row + k * 16)));
            Expr keys[2];
            for (int i = 0; i < 2; i++) {
                Expr of_tile = i == 0 ? low_half(words) : high_half(words);
                keys[i] = code.let("k_fragments", neighbouring_codes(cfg.dtype, of_tile));
            }
            for (int half = 0; half < 2; half++) {
                for (int i = 0; i < 2; i++) {
                    Expr fragment = half == 0 ? low_half(keys[i]) : high_half(keys[i]);
                    for (int m = 0; m < tile.m_tiles; m++) {
                        multiply(cfg.dtype, logits, logit_index(m, n + i), q[half][m], fragment, k + half == 0);
                    }
                }
            }
        }
    }
}

void ProgramBuilder::multiply_value_codes(const Expr &buffer) {
    Expr at = code.let("v_buffer", v_at + buffer * shared.v_buffer);
    for (int k = 0; k < tile.keys_of_warp() / 16; k++) {
        std::vector<Expr> p;
        for (int m = 0; m < tile.m_tiles; m++) p.push_back(code.let("weight_fragment", packed_weights(m, k)));
        for (int n = 0; n < out_tiles; n += 4) {
            Expr words = code.let("v_codes", load_matrices_transposed(at + (k * 16 * shared.v_row + n * 8)));
            for (int i = 0; i < 4; i += 2) {
                Expr of_columns = i == 0 ? low_half(words) : high_half(words);
                Expr both = code.let("v_fragments", alternate_codes(of_columns));
                for (int t = 0; t < 2; t++) {
                    Expr values = t == 0 ? low_half(both) : high_half(both);
                    for (int m = 0; m < tile.m_tiles; m++) {
                        multiply(ElementType::f16, out, out_index(m, n + i + t), p[m], values, false);
                    }
                }
            }
        }
    }
}

}  // namespace heed::cuda
