// One block of keys: the online softmax, and the values by its weights.
#include "generators/attention/logits.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

namespace {

// The sums are rescaled when the maximum has grown by this power of 2: a weight of up to 2^8 is as exact, and sums are
// seldom touched (Zadouri et al., FlashAttention-4).
constexpr float most_growth = 8;

// A weight of -0, which no exponential gives: the key is hidden.
constexpr uint32_t hidden_weight = 0x8000;

Expr unsigned_bits(const Expr &x) { return reinterpret<uint32_t>(x); }

// Neither NaN nor infinite: those have all bits of the exponent set.
Expr is_number(const Expr &value) { return (unsigned_bits(value) & Expr(0x7f800000u)) != Expr(0x7f800000u); }

}  // namespace

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
    for (int r = 0; r < rows_of_thread; r++) {
        huge.push_back(code.let("huge", cast<int32_t>(abs(bases[r]) > huge_base)));
        any = any | huge[r];
    }
    code.when(any_lane(code.let("any_huge", any)) != 0, [&] {
        for (int r = 0; r < rows_of_thread; r++) {
            change_row(r, [&](const Expr &x, int, int) { return select(huge[r] != 0, x - row_max[r], x); });
            Expr factor = exp2((old_max[r] - row_max[r]) * unit);
            code.set(factors, r, select(huge[r] != 0, factor, factors[r]));
            code.set(bases, r, select(huge[r] != 0, 0.f, bases[r]));
        }
    });
}

// A thread sums its own columns; lanes of a row are summed once, for the results. `stores_weights`: for steps key by
// key.
void ProgramBuilder::softmax(bool stores_weights) {
    std::vector<Expr> old_max;
    for (int r = 0; r < rows_of_thread; r++) {
        old_max.push_back(code.let("old_max", row_max[r]));
        Expr largest = largest_logit(r);
        largest = code.let("largest", select((largest - old_max[r]) * unit > most_growth, largest, old_max[r]));
        // As long as all keys are hidden any number but -inf.
        code.set(bases, r, select(is_negative_infinity(largest), 0.f, largest * unit));
        // Exactly 1 where the maximum stays: the base's rounding would make it nearly 1.
        code.set(factors, r, select(old_max[r] == largest, 1.f, exponential(old_max[r], bases[r])));
        code.set(row_max, r, largest);
    }
    if (!cfg.modifies_logits()) subtract_huge_maxima(old_max);
    for (int r = 0; r < rows_of_thread; r++) {
        Expr sum = row_sum[r] * factors[r];
        std::vector<Expr> weight;  // column e of tile n is number 2 * n + e
        for (int n = 0; n < key_tiles; n++) {
            for (int e = 0; e < 2; e++) weight.push_back(code.let("weight", exponential(logit(r, n, e), bases[r])));
            sum += weight[2 * n] + weight[2 * n + 1];
        }
        code.set(row_sum, r, sum);
        for (int n = 0; n < key_tiles; n++) {
            if (stores_weights) store_weights(r, n, weight[2 * n], weight[2 * n + 1]);
            for (int e = 0; e < 2; e++) code.set(logits, logit_register(r, n, e), weight[2 * n + e]);
        }
    }
    if (stores_weights) rescale();
}

// Mostly no maximum grows: then every factor is exactly 1.
void ProgramBuilder::rescale_if_grown() {
    Expr grows = 0;
    for (int r = 0; r < rows_of_thread; r++) {
        grows = grows | cast<int32_t>(unsigned_bits(factors[r]) != unsigned_bits(1.f));
    }
    code.when(any_lane(code.let("grows", grows)) != 0, [&] { rescale(); });
}

void ProgramBuilder::rescale() {
    for (int i = 0; i < 4 * out_tiles; i++) code.run(set_sum(i, sum_so_far(i) * factors[i % 4 / 2]));
}

// What a product of values reads and adds to, once the one before has ended.
void ProgramBuilder::hand_weights_over() {
    code.run(wait_products(0));
    pack_weights();
    rescale_if_grown();
}

void ProgramBuilder::pack_weights() {
    for (int n = 0; n < key_tiles; n++) {
        for (int r = 0; r < rows_of_thread; r++) {
            code.run(set_weights(2 * n + r, pack(cfg.dtype, logit(r, n, 0), logit(r, n, 1))));
        }
    }
}

void ProgramBuilder::begin_sums(const Expr &buffer) {
    const Expr values = shared_at + shared.v + buffer * shared.v_buffer;
    Expr v = code.let("v_matrix", matrix_descriptor(values, tile.kv_block * panel_row_bytes));
    for (int k = 0; k < tile.kv_block / 16; k++) {
        code.run(multiply_sums(cfg.dtype, depth_v, 16 * k, v + cast<uint64_t>(k * 16 * panel_row_bytes / 16)));
    }
    code.run(commit_products());
}

void ProgramBuilder::multiply_values(const Expr &buffer) {
    code.run(begin_products());
    begin_sums(buffer);
    code.run(wait_products(0));
}

// ---- Key by key

void ProgramBuilder::store_weights(int r, int n, const Expr &first, const Expr &second) {
    Expr at = weights_at(r) + (8 * n + 2 * quad) * size;
    Expr pair = code.let("pair", pack(cfg.dtype, first, second));
    Expr low = select(is_negative_infinity(logit(r, n, 0)), Expr(hidden_weight), pair & Expr(0xffffu));
    Expr high = select(is_negative_infinity(logit(r, n, 1)), Expr(hidden_weight << 16), pair & Expr(0xffff0000u));
    code.run(store_shared_u32(at, low | high));
}

// Each warp stores and later reads the weights of its own rows, in the place of K.
Expr ProgramBuilder::weights_at(int r) const {
    return shared_at + shared.k + (warp * 16 + group + 8 * r) * shared.weight_row;
}

// The products of values that are no numbers. A hidden key is skipped, not multiplied by 0.
void ProgramBuilder::multiply_values_key_by_key() {
    const Expr rows = shared_at + shared.v;
    code.loop("key", tile.kv_block, [&](const Expr &key) {
        Expr weight[rows_of_thread], hidden[rows_of_thread];
        for (int r = 0; r < rows_of_thread; r++) {
            Expr stored = code.let("stored", load_shared_u16(weights_at(r) + key * size));
            hidden[r] = stored == Expr(hidden_weight);
            weight[r] = unpack(cfg.dtype, stored, 0);
        }
        for (int n = 0; n < out_tiles; n++) {
            Expr at = rows + chunk_in_panels(key, n, tile.kv_block) + quad * (2 * size);
            Expr pair = code.let("pair", load_shared_u32(at)), value[2];
            for (int e = 0; e < 2; e++) value[e] = code.let("value", unpack(cfg.dtype, pair, e));
            for (int i = 0; i < 4; i++) {
                const int index = 4 * n + i;
                const Expr skip = hidden[i / 2] || is_number(value[i % 2]), before = sum_so_far(index);
                code.run(set_sum(index, select(skip, before, fma(weight[i / 2], value[i % 2], before))));
            }
        }
    });
}

// Values that are no numbers become 0 in shared memory.
void ProgramBuilder::drop_what_is_not_finite() {
    const int of_row = depth_v / 4, all = tile.kv_block * of_row, turns = (all + tile.threads() - 1) / tile.threads();
    code.loop("four_values", turns, [&](const Expr &turn) {
        Expr four = code.let("four", turn * tile.threads() + thread);
        code.when(four < all, [&] {
            Expr place = element_at(shared_at + shared.v, tile.kv_block, four / of_row, four % of_row * 4);
            Expr at = code.let("four_at", place);
            code.run(store_shared_u64(at, finite_or_zero(code.let("values", load_shared_u64(at)))));
        });
    });
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

}  // namespace heed::cuda
