// One block of keys: the values by the weights.
#include "generators/attention/logits.h"
#include "generators/cuda/program_builder.h"

namespace heed::cuda {

using namespace Halide;

namespace {

// A weight of -0, which no exponential gives: the key is hidden.
constexpr uint32_t hidden_weight = 0x8000;

// NaN and infinities: the exponent has all bits set.
Expr is_number(const Expr &value) { return (reinterpret<uint32_t>(value) & Expr(0x7f800000u)) != Expr(0x7f800000u); }

}  // namespace

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
