// Tiles of gradients in bf16 from words of two, see attention_backward_tiles.h of the generators. A tile multiplies
// every row with every key; where a row or key holds NaN or infinities, which are zeros there, what they give to those
// that see them is added here, one by one.
#include "runtime/cpu/backward_keys.h"
#include "runtime/view.h"

namespace heed {
namespace {

int32_t half(int32_t x) { return x / 2; }

struct Bf16Scratch {
    uint16_t *k_, *v_;                  // [key][element]
    uint16_t *k_columns_;               // [element][key], numbers only
    uint16_t *weights_, *score_grads_;  // [key][query]

    Bf16Scratch(const BackwardLayout &layout, Parts *scratch) {
        const int64_t keys = layout.tile->columns;
        scratch->take(keys * layout.head_dim, &k_);
        scratch->take(keys * layout.head_dim_v, &v_);
        scratch->take(keys * layout.head_dim, &k_columns_);
        for (uint16_t **tile : {&weights_, &score_grads_}) scratch->take(keys * layout.tile->rows, tile);
    }
};

class Bf16Tiles : public BackwardKeys, private Bf16Scratch {
public:
    Bf16Tiles(const BackwardCall &call, const BackwardSequence &sequence, const KeysTask &task, Parts *scratch)
        : BackwardKeys(call, sequence, task, scratch, true), Bf16Scratch(layout_, scratch) {}

private:
    bool nonfinite_keys_ = false;

    int load_keys(int32_t key, char (&message)[512]) override {
        const ProblemViews &views = call_.plan.views;
        bool finite = true, any = true;
        const int code = load_key_words(call_, rows_at(call_.args.k, views.k, key, p_.head_dim), k_, k_columns_,
                                        layout_.head_dim, &finite, message);
        nonfinite_keys_ = !finite;
        if (code != 0) return code;
        return load_key_words(call_, rows_at(call_.args.v, views.v, key, p_.head_dim_v), v_, nullptr,
                              layout_.head_dim_v, &any, message);
    }

    QueryWords words_of(int64_t at, int64_t first, int32_t elements) const {
        return QueryWords::at(call_.at<float>(at) + first * elements, queries_, elements);
    }
    KernelBuffer words(int64_t at, int64_t first, int32_t elements) const {
        return packed_buffer(words_of(at, first, elements).words, HEED_I32, {queries_, half(elements)});
    }
    KernelBuffer pairs(int64_t at, int64_t first, int32_t elements) const {
        constexpr int32_t chunk = backward_chunk;
        return packed_buffer(words_of(at, first, elements).pairs, HEED_I32, {chunk, half(queries_), elements / chunk});
    }
    KernelBuffer rows(uint16_t *data, int32_t elements) const {
        return packed_buffer(data, HEED_I32, {half(elements), keys_});
    }

    int call_tile(int32_t head, int32_t row, int32_t key, char (&message)[512]) override {
        constexpr int32_t chunk = backward_chunk;
        const int64_t first = packed_row(head, row);
        const int32_t head_dim = layout_.head_dim, head_dim_v = layout_.head_dim_v;
        float *const dq_data = dq_at(head, row);
        BackwardTileBf16Arguments arguments;
        arguments.q_words = words(layout_.q, first, head_dim);
        arguments.dout_words = words(layout_.dout, first, head_dim_v);
        arguments.q_pairs = pairs(layout_.q, first, head_dim);
        arguments.dout_pairs = pairs(layout_.dout, first, head_dim_v);
        arguments.k_rows = rows(k_, head_dim);
        arguments.v_rows = rows(v_, head_dim_v);
        arguments.k_columns = packed_buffer(k_columns_, HEED_I32, {half(keys_), chunk, head_dim / chunk});
        set_logits({head, row, key, keys_}, &arguments);
        arguments.dq = packed_buffer(dq_data, HEED_F32, {queries_, chunk, head_dim / chunk});
        arguments.dk = chunked_buffer(dk_, head_dim, keys_);
        arguments.dv = chunked_buffer(dv_, head_dim_v, keys_);
        arguments.dq_before = arguments.dq;
        arguments.dk_before = arguments.dk;
        arguments.dv_before = arguments.dv;
        arguments.weights = logits(weights_, HEED_BF16);
        arguments.score_grads = logits(score_grads_, HEED_BF16);
        arguments.logit_grads = logits(logit_grads_, HEED_F32);
        int code = call_op_kernel(*layout_.tile, arguments, message);
        if (code == 0 && nonfinite_keys_) code = repair_queries(dq_data, message);
        if (code == 0 && nonfinite_rows(head, row)) code = repair_keys(first, message);
        return code;
    }

    // Places of a matrix (n, element) or (element, m) as attention_backward_repair has them: an element is a half of a
    // pair of a chunk.
    struct Elements {
        void *data;
        int32_t half, pair, chunk, count;  // strides; chunks
    };

    int repair(const KernelBuffer &factors, const Elements &from, int32_t from_stride, const Elements &to,
               int32_t to_stride, char (&message)[512]) const {
        constexpr int32_t pairs = backward_chunk / 2;
        BackwardRepairArguments arguments;
        arguments.factors = factors;
        arguments.elements = {from.data,
                              HEED_BF16,
                              4,
                              {2, pairs, from.count, factors.extent[1]},
                              {from.half, from.pair, from.chunk, from_stride}};
        arguments.before = arguments.sums = {
            to.data, HEED_F32, 4, {factors.extent[0], 2, pairs, to.count}, {to_stride, to.half, to.pair, to.chunk}};
        return call_op_kernel(*layout_.repair, arguments, message);
    }

    // dq of the rows that see such keys.
    int repair_queries(float *dq, char (&message)[512]) const {
        constexpr int32_t chunk = backward_chunk;
        const int32_t head_dim = layout_.head_dim, count = head_dim / chunk;
        const Elements keys = {k_, 1, 2, chunk, count}, to = {dq, queries_, 2 * queries_, chunk * queries_, count};
        const KernelBuffer factors = packed_buffer(score_grads_, HEED_BF16, {queries_, keys_});
        return repair(factors, keys, head_dim, to, 1, message);
    }

    // dk and dv of the keys that see such rows.
    int repair_keys(int64_t first, char (&message)[512]) const {
        constexpr int32_t chunk = backward_chunk;
        const auto add = [&](int64_t at, int32_t elements, uint16_t *grads, float *sums) {
            const int32_t count = elements / chunk;
            const Elements rows = {words_of(at, first, elements).words, 1, 2 * queries_, chunk * queries_, count},
                           to = {sums, 1, 2, chunk * keys_, count};
            const KernelBuffer factors = {grads, HEED_BF16, 2, {keys_, queries_}, {queries_, 1}};
            return repair(factors, rows, 2, to, chunk, message);
        };
        const int code = add(layout_.q, layout_.head_dim, score_grads_, dk_);
        return code != 0 ? code : add(layout_.dout, layout_.head_dim_v, weights_, dv_);
    }
};

}  // namespace

void take_bf16_tiles(const BackwardLayout &layout, Parts *scratch) {
    KeysScratch(layout, scratch);
    Bf16Scratch(layout, scratch);
}

int run_bf16_tiles(const BackwardCall &call, const BackwardSequence &sequence, const KeysTask &task, Parts *scratch,
                   char (&message)[512]) {
    return Bf16Tiles(call, sequence, task, scratch).run(message);
}

}  // namespace heed
