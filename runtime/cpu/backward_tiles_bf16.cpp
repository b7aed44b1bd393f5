// Tiles of gradients in bf16 from words of two, see attention_backward_tiles.h of the generators. A tile multiplies
// every row with every key; where a row or key holds NaN or infinities, which are zeros there, what they give to those
// that see them is added here, one by one.
#include <cstring>

#include "cpu/backward_keys.h"
#include "cpu/backward_words.h"
#include "weight_element.h"

namespace heed {
namespace {

int32_t half(int32_t x) { return x / 2; }

class Bf16Tiles : public BackwardKeys {
public:
    // Offsets of what a thread needs for a block of keys, in floats: two bf16 each.
    struct Scratch {
        int64_t k, v, k_columns, grads[2], total;

        explicit Scratch(const BackwardLayout &layout) : total(shared_scratch(layout)) {
            const int64_t keys = layout.tile->columns;
            const auto take = [&](int64_t count) { return take_floats(count / 2, &total); };
            k = take(keys * layout.head_dim);
            v = take(keys * layout.head_dim_v);
            k_columns = take(keys * layout.head_dim);
            for (int64_t &tile : grads) tile = take(keys * layout.tile->rows);
        }
    };

    Bf16Tiles(const BackwardCall &call, const BackwardSequence &sequence, int32_t kv_head, int32_t range,
              float *scratch)
        : BackwardKeys(call, sequence, kv_head, range, scratch, true) {
        const Scratch at(layout_);
        const auto bits = [&](int64_t offset) { return reinterpret_cast<uint16_t *>(scratch + offset); };
        k_ = bits(at.k);
        v_ = bits(at.v);
        k_columns_ = bits(at.k_columns);
        weights_ = bits(at.grads[0]);
        score_grads_ = bits(at.grads[1]);
    }

private:
    uint16_t *k_, *v_;                  // [key][element]
    uint16_t *k_columns_;               // [element][key], numbers only
    uint16_t *weights_, *score_grads_;  // [key][query]
    bool special_keys_ = false;

    void load_keys(int32_t key) override {
        const ProblemViews &views = call_.plan.views;
        special_keys_ = !load(call_.args.k, views.k, key, p_.head_dim, layout_.head_dim, k_);
        load(call_.args.v, views.v, key, p_.head_dim_v, layout_.head_dim_v, v_);
        for (int32_t d = 0; d < layout_.head_dim; d++) {
            for (int32_t j = 0; j < keys_; j++) {
                const uint16_t bits = k_[j * layout_.head_dim + d];
                k_columns_[d * keys_ + j] = is_special(bits) ? uint16_t{0} : bits;
            }
        }
    }

    // Whether all are finite.
    bool load(const heed_tensor &tensor, const View &view, int32_t key, int32_t elements, int32_t padded,
              uint16_t *rows) const {
        bool finite = true;
        const int32_t count = count_at(key);
        std::memset(rows, 0, sizeof(uint16_t) * static_cast<size_t>(keys_ * padded));
        for (int32_t j = 0; j < count; j++) {
            uint16_t *const row = rows + int64_t{j} * padded;
            std::memcpy(row, row_at(tensor, view, key + j), sizeof(uint16_t) * static_cast<size_t>(elements));
            finite = all_finite(row, elements) && finite;
        }
        return finite;
    }

    KernelBuffer words(int64_t at, int64_t first, int32_t elements) const {
        const WordBlock block = WordBlock::at(call_.at<float>(at), first, queries_, elements);
        return {block.words, HEED_I32, 2, {queries_, half(elements)}, {1, queries_}};
    }
    KernelBuffer pairs(int64_t at, int64_t first, int32_t elements) const {
        constexpr int32_t chunk = backward_chunk;
        const WordBlock block = WordBlock::at(call_.at<float>(at), first, queries_, elements);
        const int32_t rows = half(queries_);
        return {block.pairs, HEED_I32, 3, {chunk, rows, elements / chunk}, {1, chunk, chunk * rows}};
    }
    KernelBuffer rows(uint16_t *data, int32_t elements) const {
        return {data, HEED_I32, 2, {half(elements), keys_}, {1, half(elements)}};
    }

    int call_tile(int32_t head, int32_t row, int32_t key, char (&message)[512]) override {
        constexpr int32_t chunk = backward_chunk;
        const int64_t first = packed_row(head, row);
        const int32_t head_dim = layout_.head_dim, head_dim_v = layout_.head_dim_v, columns = half(keys_);
        float *const dq_data = dq_of(head) + int64_t{row} * head_dim;
        BackwardTileBf16Arguments arguments;
        arguments.q_words = words(layout_.q, first, head_dim);
        arguments.dout_words = words(layout_.dout, first, head_dim_v);
        arguments.q_pairs = pairs(layout_.q, first, head_dim);
        arguments.dout_pairs = pairs(layout_.dout, first, head_dim_v);
        arguments.k_rows = rows(k_, head_dim);
        arguments.v_rows = rows(v_, head_dim_v);
        arguments.k_columns = {
            k_columns_, HEED_I32, 3, {columns, chunk, head_dim / chunk}, {1, columns, chunk * columns}};
        set_logits({head, row, key, keys_}, &arguments);
        arguments.dq = {dq_data, HEED_F32, 3, {queries_, chunk, head_dim / chunk}, {1, queries_, chunk * queries_}};
        arguments.dk = chunked_buffer(dk_, head_dim, keys_);
        arguments.dv = chunked_buffer(dv_, head_dim_v, keys_);
        arguments.dq_before = arguments.dq;
        arguments.dk_before = arguments.dk;
        arguments.dv_before = arguments.dv;
        arguments.weights = logits(weights_, HEED_BF16);
        arguments.score_grads = logits(score_grads_, HEED_BF16);
        arguments.logit_grads = logits(logit_grads_, HEED_F32);
        const int code = call_op_kernel(*layout_.tile, arguments, message);
        if (code != 0) return code;
        if (special_keys_) add_special_keys(dq_data);
        if (special_rows(head, row)) add_special_rows(first);
        return 0;
    }

    // dq of the rows that see them.
    void add_special_keys(float *dq) const {
        for (int64_t j = 0; j < keys_; j++) {
            for (int64_t d = 0; d < p_.head_dim; d++) {
                const uint16_t bits = k_[j * layout_.head_dim + d];
                if (is_special(bits))
                    add_products(score_grads_ + j * queries_, queries_, 1, bits, dq + d * queries_, 1);
            }
        }
    }

    // dk and dv of the keys that they see.
    void add_special_rows(int64_t first) const {
        const WordBlock q = WordBlock::at(call_.at<float>(layout_.q), first, queries_, layout_.head_dim);
        const WordBlock dout = WordBlock::at(call_.at<float>(layout_.dout), first, queries_, layout_.head_dim_v);
        const auto add = [&](const WordBlock &block, int32_t elements, const uint16_t *grads, float *to) {
            for (int32_t i = 0; i < queries_; i++) {
                for (int32_t d = 0; d < elements; d++) {
                    const uint16_t bits = block.get(i, d);
                    float *const column =
                        to + int64_t{d / backward_chunk} * backward_chunk * keys_ + d % backward_chunk;
                    if (is_special(bits)) add_products(grads + i, keys_, queries_, bits, column, backward_chunk);
                }
            }
        };
        add(q, p_.head_dim, score_grads_, dk_);
        add(dout, p_.head_dim_v, weights_, dv_);
    }

    // to[n] += factors[n] * element, where the factor is not 0.
    static void add_products(const uint16_t *factors, int32_t count, int64_t factor_stride, uint16_t element, float *to,
                             int64_t to_stride) {
        for (int32_t n = 0; n < count; n++) {
            const float factor = load_element(factors, n * factor_stride, HEED_BF16);
            if (factor == 0) continue;
            to[n * to_stride] += factor * load_element(&element, 0, HEED_BF16);
        }
    }
};

}  // namespace

int64_t bf16_tiles_scratch(const BackwardLayout &layout) { return Bf16Tiles::Scratch(layout).total; }

int run_bf16_tiles(const BackwardCall &call, const BackwardSequence &sequence, int32_t kv_head, int32_t range,
                   float *scratch, char (&message)[512]) {
    return Bf16Tiles(call, sequence, kv_head, range, scratch).run(message);
}

}  // namespace heed
