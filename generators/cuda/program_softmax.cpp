// One block of keys: the online softmax, and the values by its weights.
#include "generators/attention/dropout.h"
#include "generators/attention/logits.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

namespace {

// A weight of -0, which no exponential gives: the key is hidden, or dropped.
constexpr uint32_t hidden_weight = 0x8000;

// With warpgroups the sums are rescaled when the maximum has grown by this power of 2: a weight of up to 2^8 is as
// exact, and sums are seldom touched (Zadouri et al., FlashAttention-4).
constexpr float most_growth = 8;

Expr unsigned_bits(const Expr &x) { return reinterpret<uint32_t>(x); }

}  // namespace

// Which weights of this step dropout keeps.
void ProgramBuilder::find_kept(const Expr &start) {
    for (int r = 0; r < rows_of_thread(); r++) code.set(kept, r, Expr(0xffffffffu));
    auto wide = [](const Expr &x) { return cast<uint64_t>(x); };
    code.when(in.dropout_threshold != wide(0), [&] {
        const DropoutStream stream = DropoutStream::of(in.dropout_seed, in.dropout_offset);
        for (int r = 0; r < rows_of_thread(); r++) {
            const Query query = this->query(r);
            Expr row = (wide(sequence) * wide(in.q.extent(1)) + wide(query.head)) * wide(in.max_q_len);
            Expr first = (row + wide(query.position)) * wide(in.max_kv_len) + wide(key(start, 0, 0));
            first = code.let("first_element", first);
            for (int n = 0; n < key_tiles; n++) {
                for (int e = 0; e < 2; e++) {
                    Expr keeps = heed::is_kept(stream, in.dropout_threshold, first + wide(8 * n + e));
                    Expr drops = select(keeps, Expr(0u), Expr(1u << (2 * n + e)));
                    code.set(kept, r, kept[r] & ~drops);
                }
            }
        }
    });
}

Expr ProgramBuilder::is_kept(int r, int n, int e) const { return (kept[r] & Expr(1u << (2 * n + e))) != Expr(0u); }

// One value of the four lanes that share a row.
Expr ProgramBuilder::over_quad(Expr x, const std::function<Expr(const Expr &, const Expr &)> &combine) {
    for (int lanes : {1, 2}) {
        Expr mine = code.let("mine", x);
        x = combine(mine, from_lane(mine, lanes));
    }
    return x;
}

// The maximum of row r over all keys so far.
Expr ProgramBuilder::largest_logit(int r) {
    Expr largest = row_max[r];
    for (int n = 0; n < key_tiles; n++) {
        for (int e = 0; e < 2; e++) largest = maximum(largest, logit(r, n, e));
    }
    return code.let("largest", over_quad(largest, maximum));
}

// 2 to the power of (x - maximum) * unit, in one fma, whose rounding of base changes all weights of a row alike.
Expr ProgramBuilder::exponential(const Expr &x, const Expr &base) const { return exp2(fma(x, unit, -base)); }

// Where base is so large that its rounding could carry the weights out of range, the maximum is subtracted first. By
// rows, so that none depends on another.
void ProgramBuilder::subtract_huge_maxima(const std::vector<Expr> &old_max) {
    constexpr float huge_base = 1 << 20;  // half a unit of it is 2^-4
    std::vector<Expr> huge;
    Expr any = 0;
    for (int r = 0; r < rows_of_thread(); r++) {
        huge.push_back(code.let("huge", cast<int32_t>(abs(bases[r]) > huge_base)));
        any = any | huge[r];
    }
    code.when(any_lane(code.let("any_huge", any)) != 0, [&] {
        for (int r = 0; r < rows_of_thread(); r++) {
            change_row(r, [&](const Expr &x, int, int) { return select(huge[r] != 0, x - row_max[r], x); });
            Expr factor = exp2((old_max[r] - row_max[r]) * unit);
            code.set(factors, r, select(huge[r] != 0, factor, factors[r]));
            code.set(bases, r, select(huge[r] != 0, 0.f, bases[r]));
        }
    });
}

// A thread sums its own columns; lanes of a row are summed once, for the results. Weights are packed to 16 bits; those
// that dropout drops count in the sum only.
void ProgramBuilder::softmax(const Expr &buffer, bool stores_weights) {
    std::vector<Expr> old_max, value_scales;
    if (has_codes) value_scales = scales_of_columns(1, buffer);
    for (int r = 0; r < rows_of_thread(); r++) {
        old_max.push_back(code.let("old_max", row_max[r]));
        Expr largest = largest_logit(r);
        if (tile.warpgroups)
            largest = code.let("largest", select((largest - old_max[r]) * unit > most_growth, largest, old_max[r]));
        // As long as all keys are hidden any number but -inf.
        code.set(bases, r, select(is_negative_infinity(largest), 0.f, largest * unit));
        // With warpgroups exactly 1 where the maximum stays: the base's rounding would make it nearly 1.
        const Expr factor = exponential(old_max[r], bases[r]);
        code.set(factors, r, tile.warpgroups ? select(old_max[r] == largest, 1.f, factor) : factor);
        code.set(row_max, r, largest);
    }
    if (!cfg.modifies_logits()) subtract_huge_maxima(old_max);
    for (int r = 0; r < rows_of_thread(); r++) {
        Expr sum = row_sum[r] * factors[r];
        std::vector<Expr> weight;  // column e of tile n is number 2 * n + e
        for (int n = 0; n < key_tiles; n++) {
            for (int e = 0; e < 2; e++) weight.push_back(code.let("weight", exponential(logit(r, n, e), bases[r])));
            sum += weight[2 * n] + weight[2 * n + 1];
            for (int e = 0; e < 2 && cfg.has_dropout; e++) {
                Expr &x = weight[2 * n + e];
                x = code.let("kept_weight", select(is_kept(r, n, e), x, 0.f));
            }
        }
        code.set(row_sum, r, sum);
        if (has_codes) scale_weights(r, weight, value_scales);
        for (int n = 0; n < key_tiles; n++) {
            if (stores_weights) store_weights(r, n, weight[2 * n], weight[2 * n + 1]);
            if (sums_of_products) {
                for (int e = 0; e < 2; e++) code.set(logits, logit_register(r, n, e), weight[2 * n + e]);
            } else if (!stores_weights) {
                Expr pair = pack(has_codes ? ElementType::f16 : cfg.dtype, weight[2 * n], weight[2 * n + 1]);
                code.set(weights, weight_index(r, n), pair);
            }
        }
    }
    if (stores_weights) {
        rescale();
        return;
    }
    if (!sums_of_products) rescale_if_grown();
}

void ProgramBuilder::rescale_if_grown() {
    // Mostly no maximum grows: then every factor is exactly 1.
    Expr grows = 0;
    for (int r = 0; r < rows_of_thread(); r++)
        grows = grows | cast<int32_t>(unsigned_bits(factors[r]) != unsigned_bits(1.f));
    code.when(any_lane(code.let("grows", grows)) != 0, [&] { rescale(); });
}

// What a product of values reads and adds to, once the one before has ended.
void ProgramBuilder::hand_weights_over() {
    code.run(wait_products(0));
    pack_weights();
    rescale_if_grown();
}

void ProgramBuilder::pack_weights() {
    for (int n = 0; n < key_tiles; n++) {
        for (int r = 0; r < 2; r++) code.run(set_weights(2 * n + r, pack(cfg.dtype, logit(r, n, 0), logit(r, n, 1))));
    }
}

// Values that are no numbers become 0 in shared memory.
void ProgramBuilder::drop_what_is_not_finite() {
    const int of_row = depth_v / 4, all = tile.kv_block * of_row, turns = (all + tile.threads() - 1) / tile.threads();
    code.loop("four_values", turns, [&](const Expr &turn) {
        Expr four = code.let("four", turn * tile.threads() + thread);
        code.when(four < all, [&] {
            Expr at = code.let("four_at", element_at(shared_at + shared.v, tile.kv_block, shared.v_row, four / of_row,
                                                     four % of_row * 4, size));
            code.run(store_shared_u64(at, finite_or_zero(code.let("values", load_shared_u64(at)))));
        });
    });
}

void ProgramBuilder::rescale() {
    for (int m = 0; m < tile.m_tiles; m++) {
        for (int n = 0; n < out_tiles; n++) {
            for (int i = 0; i < 4; i++) {
                const int index = 4 * out_index(m, n) + i;
                set_sum_so_far(index, sum_so_far(index) * factors[2 * m + i / 2]);
            }
        }
    }
}

void ProgramBuilder::set_sum_so_far(int i, const Expr &value) {
    if (sums_of_products) {
        code.run(set_sum(i, value));
    } else {
        code.set(out, i, value);
    }
}

Expr ProgramBuilder::packed_weights(int m, int k) const {
    auto pair = [&](int r, int n) { return weights[weight_index(2 * m + r, 2 * k + n)]; };
    return fragment(pair(0, 0), pair(1, 0), pair(0, 1), pair(1, 1));
}

// The -0 of a hidden key adds nothing, as 0 does.
Expr ProgramBuilder::stored_weights(int m, int k) const {
    Expr row = warp * (16 * tile.m_tiles) + 16 * m + lane % 16;
    return load_matrices(shared_at + shared.k + row * shared.weight_row + (lane / 16) * 16 + k * 32);
}

// `finite_only`: weights come from shared memory, and of the values only the finite ones count.
void ProgramBuilder::multiply_values(const Expr &buffer, bool finite_only) {
    if (has_codes) return multiply_value_codes(buffer);
    if (tile.warpgroups) {
        code.run(begin_products());
        multiply_values_of_warpgroup(buffer);
        code.run(wait_products(0));
        return;
    }
    Expr at = code.let("v_buffer", v_at + buffer * shared.v_buffer);
    for (int k = 0; k < tile.keys_of_warp() / 16; k++) {
        std::vector<Expr> p;
        for (int m = 0; m < tile.m_tiles; m++) {
            p.push_back(code.let("weight_fragment", finite_only ? stored_weights(m, k) : packed_weights(m, k)));
        }
        for (int n = 0; n < out_tiles; n += 2) {
            Expr both = code.let("v_fragments", load_matrices_transposed(at + (k * 16 * shared.v_row + n * 16)));
            for (int i = 0; i < 2; i++) {
                Expr values = i == 0 ? low_half(both) : high_half(both);
                if (finite_only) values = code.let("finite_values", finite_or_zero(values));
                for (int m = 0; m < tile.m_tiles; m++)
                    multiply(cfg.dtype, out, out_index(m, n + i), p[m], values, false);
            }
        }
    }
}

void ProgramBuilder::multiply_values_of_warpgroup(const Expr &buffer) {
    const Expr values = shared_at + shared.v + buffer * shared.v_buffer;
    Expr v = code.let("v_matrix", matrix_descriptor(values, tile.kv_block * panel_row_bytes));
    for (int k = 0; k < tile.kv_block / 16; k++) {
        code.run(multiply_sums(cfg.dtype, depth_v, 16 * k, v + cast<uint64_t>(k * 16 * panel_row_bytes / 16)));
    }
    code.run(commit_products());
}

void ProgramBuilder::store_weights(int r, int n, const Expr &first, const Expr &second) {
    Expr hidden[2];
    for (int e = 0; e < 2; e++) {
        hidden[e] = is_negative_infinity(logit(r, n, e));
        if (cfg.has_dropout) hidden[e] = hidden[e] || !is_kept(r, n, e);
    }
    Expr at = weights_at(r) + (8 * n + 2 * quad) * size;
    Expr pair = code.let("pair", pack(cfg.dtype, first, second));
    Expr low = select(hidden[0], Expr(hidden_weight), pair & Expr(0xffffu));
    Expr high = select(hidden[1], Expr(hidden_weight << 16), pair & Expr(0xffff0000u));
    code.run(store_shared_u32(at, low | high));
}

// Each warp stores and later reads the weights of its own rows, in the place of K.
Expr ProgramBuilder::weights_at(int r) const {
    return shared_at + shared.k + (warp * (16 * tile.m_tiles) + group + 8 * r) * shared.weight_row;
}

// Two consecutive elements of a row in shared memory, as floats.
std::vector<Expr> ProgramBuilder::two_elements(const Expr &address) {
    std::vector<Expr> result;
    Expr pair = code.let("pair", load_shared_u32(address));
    for (int e = 0; e < 2; e++) result.push_back(code.let("value", unpack(cfg.dtype, pair, e)));
    return result;
}

// NaN and infinities: the exponent has all bits set.
Expr ProgramBuilder::is_finite(const Expr &value) const {
    return (unsigned_bits(value) & Expr(0x7f800000u)) != Expr(0x7f800000u);
}

// For four 16-bit elements.
Expr ProgramBuilder::finite_or_zero(const Expr &four) const {
    const uint32_t exponent = cfg.dtype == ElementType::f16 ? 0x7c00 : 0x7f80;
    auto of_word = [&](const Expr &word) {
        Expr low = select((word & Expr(exponent)) == Expr(exponent), Expr(0u), word & Expr(0xffffu));
        Expr high = select((word & Expr(exponent << 16)) == Expr(exponent << 16), Expr(0u), word & Expr(0xffff0000u));
        return cast<uint64_t>(low | high);
    };
    return of_word(cast<uint32_t>(four)) | of_word(cast<uint32_t>(four >> 32)) << 32;
}

// The products that tensor cores left out: of values that are no numbers. A hidden key is skipped, not multiplied by 0.
void ProgramBuilder::multiply_values_key_by_key() {
    const Expr rows = shared_at + shared.v;
    Expr columns = code.let("columns", rows + first_key_of_warp() * shared.v_row + quad * (2 * kv_size) +
                                           column_group * (8 * out_tiles * kv_size));
    code.loop("key", tile.keys_of_warp(), [&](const Expr &key) {
        auto values = [&](int n) {
            return two_elements(tile.warpgroups
                                    ? chunk_at(rows, tile.kv_block, shared.v_row, key, n) + quad * (2 * kv_size)
                                    : columns + key * shared.v_row + n * (8 * kv_size));
        };
        for (int m = 0; m < tile.m_tiles; m++) {
            Expr weight[2], hidden[2];
            for (int half = 0; half < 2; half++) {
                Expr at = weights_at(2 * m + half) + key * size;
                Expr stored = code.let("stored", load_shared_u16(at));
                hidden[half] = stored == Expr(hidden_weight);
                weight[half] = unpack(cfg.dtype, stored, 0);
            }
            for (int n = 0; n < out_tiles; n++) {
                const std::vector<Expr> value = values(n);
                for (int i = 0; i < 4; i++) {
                    const int index = 4 * out_index(m, n) + i;
                    const Expr skip = hidden[i / 2] || is_finite(value[i % 2]), before = sum_so_far(index);
                    set_sum_so_far(index, select(skip, before, fma(weight[i / 2], value[i % 2], before)));
                }
            }
        }
    });
}

}  // namespace heed::cuda
