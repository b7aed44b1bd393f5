// The tiles of gradients: a range of key blocks against all rows that see them.
#include <algorithm>
#include <cstring>

#include "dropout.h"
#include "float_environment.h"
#include "kernel_call.h"
#include "ops/attention_backward.h"
#include "ops/backward_rows.h"
#include "status.h"
#include "weight_element.h"

namespace heed {
namespace {

// BackwardForm of the generator.
enum Form : int32_t { plain, scored, dropped };

int32_t narrow(int64_t x) { return static_cast<int32_t>(x); }

KernelBuffer buffer_of(float *data, int32_t columns, int32_t rows) {
    return {data, HEED_F32, 2, {columns, rows}, {1, columns}};
}

KernelBuffer chunks_of(float *data, int32_t elements, int32_t rows) {
    constexpr int32_t chunk = backward_chunk;
    return {data, HEED_F32, 3, {chunk, rows, elements / chunk}, {1, chunk, chunk * rows}};
}

// What a thread needs for a block of keys: offsets in floats.
struct BackwardScratch {
    int64_t k, v, k_lanes, v_lanes, dk, dv, grads[3], bias, mask, total = 0;

    BackwardScratch(const heed_problem &p, const BackwardLayout &layout) {
        const int64_t keys = layout.tile->columns, logits = keys * layout.tile->rows;
        const auto take = [&](int64_t count) {
            const int64_t at = total;
            total += round_up(count, 32);
            return at;
        };
        k = take(keys * layout.head_dim);
        v = take(keys * layout.head_dim_v);
        k_lanes = take(keys * p.head_dim);
        v_lanes = take(keys * p.head_dim_v);
        dk = take(keys * layout.head_dim);
        dv = take(keys * layout.head_dim_v);
        for (int64_t &tile : grads) tile = take(logits);
        bias = take(logits);
        mask = take(logits / 4);
    }
};

class KeyRange {
public:
    KeyRange(const BackwardCall &call, const BackwardSequence &sequence, int32_t kv_head, int32_t range, void *scratch)
        : call_(call), p_(call.plan.problem), layout_(call.layout), seq_(sequence), kv_head_(kv_head), range_(range),
          queries_(layout_.tile->rows), keys_(layout_.tile->columns),
          kv_batch_(p_.kv_storage == HEED_KV_CONTIGUOUS ? sequence.place.index : 0) {
        const BackwardScratch at(p_, layout_);
        float *const memory = static_cast<float *>(scratch);
        k_ = memory + at.k;
        v_ = memory + at.v;
        k_lanes_ = memory + at.k_lanes;
        v_lanes_ = memory + at.v_lanes;
        dk_ = memory + at.dk;
        dv_ = memory + at.dv;
        for (int n = 0; n < 3; n++) grads_[n] = memory + at.grads[n];
        bias_ = memory + at.bias;
        mask_ = reinterpret_cast<uint8_t *>(memory + at.mask);
    }

    int run(char (&message)[512]) {
        const int32_t group = p_.num_heads / p_.num_kv_heads;
        for (int32_t h = 0; h < group; h++) {
            float *const dq = dq_of(kv_head_ * group + h);
            std::fill(dq, dq + seq_.num_rows * layout_.head_dim, 0.0f);
        }
        const int64_t per_range = int64_t{layout_.blocks_per_range} * keys_, first = range_ * per_range,
                      end = std::min<int64_t>(seq_.place.kv_len, first + per_range);
        for (int64_t key = first; key < end; key += keys_) {
            if (const int code = run_block(narrow(key), message)) return code;
        }
        return 0;
    }

private:
    const BackwardCall &call_;
    const heed_problem &p_;
    const BackwardLayout &layout_;
    const BackwardSequence &seq_;
    const int32_t kv_head_, range_, queries_, keys_;
    const int64_t kv_batch_;
    float *k_, *v_, *k_lanes_, *v_lanes_, *dk_, *dv_, *grads_[3], *bias_;
    uint8_t *mask_;
    bool special_keys_ = false;

    float *dq_of(int32_t head) const {
        const int64_t row = range_ * layout_.num_rows + call_.row_of(seq_, head);
        return call_.at<float>(layout_.dq) + row * layout_.head_dim;
    }

    // Keys of the block that exist.
    int32_t count_at(int32_t key) const { return std::min(keys_, seq_.place.kv_len - key); }

    int64_t offset(const View &view, int32_t key) const {
        return kv_batch_ * view.stride[0] + (int64_t{seq_.place.first_key} + key) * view.stride[1] +
               kv_head_ * view.stride[2];
    }

    // Rows of k or v in chunks, and transposed; whether all are finite.
    bool load_keys(const heed_tensor &tensor, const View &view, int32_t key, int32_t elements, int32_t padded,
                   float *rows, float *lanes) const {
        bool finite = true;
        const int32_t count = count_at(key);
        const int64_t bytes = dtype_bytes(p_.dtype);
        for (int32_t j = 0; j < keys_; j++) {
            const ChunkedRow row = ChunkedRow::at(rows, j, keys_, padded);
            if (j < count) {
                const char *const from = static_cast<const char *>(tensor.data) + offset(view, key + j) * bytes;
                finite &= load_row(from, p_.dtype, elements, row);
            } else {
                clear_row(row, elements);
            }
        }
        for (int64_t d = 0; d < elements; d++) {
            const float *const column = rows + d / backward_chunk * backward_chunk * keys_ + d % backward_chunk;
            for (int64_t j = 0; j < keys_; j++) lanes[d * keys_ + j] = column[j * backward_chunk];
        }
        return finite;
    }

    void store_keys(const heed_tensor &tensor, const View &view, int32_t key, int32_t elements, int32_t padded,
                    float *rows, float factor) const {
        if (tensor.data == nullptr) return;
        const int64_t bytes = dtype_bytes(p_.dtype);
        for (int32_t j = 0; j < count_at(key); j++) {
            char *const to = static_cast<char *>(tensor.data) + offset(view, key + j) * bytes;
            store_row(ChunkedRow::at(rows, j, keys_, padded), factor, p_.dtype, elements, to);
        }
    }

    int run_block(int32_t key, char (&message)[512]) {
        const ProblemViews &views = call_.plan.views;
        {
            const DefaultFloatEnvironment environment;
            special_keys_ = !load_keys(call_.args.k, views.k, key, p_.head_dim, layout_.head_dim, k_, k_lanes_);
            load_keys(call_.args.v, views.v, key, p_.head_dim_v, layout_.head_dim_v, v_, v_lanes_);
            std::fill(dk_, dk_ + int64_t{keys_} * layout_.head_dim, 0.0f);
            std::fill(dv_, dv_ + int64_t{keys_} * layout_.head_dim_v, 0.0f);
        }
        const int32_t group = p_.num_heads / p_.num_kv_heads;
        for (int32_t h = 0; h < group; h++) {
            for (int32_t row = 0; row < seq_.place.q_len; row += queries_) {
                if (!sees(row, key)) continue;
                if (const int code = run_tile(kv_head_ * group + h, row, key, message)) return code;
            }
        }
        const DefaultFloatEnvironment environment;
        store_keys(call_.gradients.dk, views.k, key, p_.head_dim, layout_.head_dim, dk_, p_.scale);
        store_keys(call_.gradients.dv, views.v, key, p_.head_dim_v, layout_.head_dim_v, dv_, 1);
        return 0;
    }

    int64_t last_row(int32_t row) const { return std::min(seq_.place.q_len, row + queries_) - 1; }

    // Whether some row of the block sees some key of the block, masks apart; and whether each sees all.
    bool sees(int32_t row, int32_t key) const {
        return last_row(row) + seq_.visible.end > key && int64_t{row} + seq_.visible.begin < int64_t{key} + keys_;
    }
    bool sees_all(int32_t row, int32_t key) const {
        return key + keys_ <= seq_.place.kv_len && int64_t{row} + seq_.visible.end >= int64_t{key} + keys_ &&
               last_row(row) + seq_.visible.begin <= key;
    }

    Form form_of(int32_t row, int32_t key) const {
        if (p_.dropout_p > 0) return dropped;
        const bool changes = p_.has_mask || p_.has_bias || p_.has_alibi || p_.softcap != 0;
        return changes || !sees_all(row, key) ? scored : plain;
    }

    // The tile of a mask or bias, visit(index in the tensor, index in the tile), rows and keys that do not exist apart.
    template <typename Visit>
    void for_each_logit(const View &view, int32_t head, int32_t row, int32_t key, Visit visit) const {
        const int64_t rows = last_row(row) + 1 - row, count = count_at(key);
        for (int64_t i = 0; i < rows; i++) {
            const int64_t first = seq_.place.index * view.stride[0] + head * view.stride[1] +
                                  (row + i) * view.stride[2] + key * view.stride[3];
            for (int64_t j = 0; j < count; j++) visit(first + j * view.stride[3], i * keys_ + j);
        }
    }

    void load_logit_inputs(int32_t head, int32_t row, int32_t key) const {
        const DefaultFloatEnvironment environment;
        const int64_t elements = int64_t{keys_} * queries_;
        if (p_.has_mask) {
            const auto *const mask = static_cast<const uint8_t *>(call_.args.mask.data);
            std::fill(mask_, mask_ + elements, uint8_t{0});
            for_each_logit(call_.plan.views.mask, head, row, key,
                           [&](int64_t from, int64_t to) { mask_[to] = mask[from]; });
        }
        if (p_.has_bias) {
            std::fill(bias_, bias_ + elements, 0.0f);
            for_each_logit(call_.plan.views.bias, head, row, key, [&](int64_t from, int64_t to) {
                bias_[to] = load_element(call_.args.bias.data, from, p_.bias_dtype);
            });
        }
    }

    void add_bias_grads(int32_t head, int32_t row, int32_t key) const {
        if (call_.gradients.dbias.data == nullptr) return;
        const DefaultFloatEnvironment environment;
        const View view = dbias_view(p_, call_.plan.views);
        View to = view;  // of the element: the sums are packed
        if (layout_.sums_bias) {
            int64_t stride = 1;
            for (int n = 3; n >= 0; n--) {
                to.stride[n] = view.extent[n] == 1 ? 0 : stride;
                stride *= view.extent[n];
            }
        } else {
            for (int n = 0; n < 4; n++) to.stride[n] = view.extent[n] == 1 ? 0 : view.stride[n];
        }
        float *const sums = call_.at<float>(layout_.dbias);
        for_each_logit(to, head, row, key, [&](int64_t index, int64_t from) {
            if (layout_.sums_bias) {
                sums[index] += grads_[2][from];
            } else {
                store_element(call_.gradients.dbias.data, index, p_.bias_dtype, grads_[2][from]);
            }
        });
    }

    int run_tile(int32_t head, int32_t row, int32_t key, char (&message)[512]) {
        load_logit_inputs(head, row, key);
        const int64_t first = call_.row_of(seq_, head) + row;
        const auto rows_of = [&](int64_t at, int32_t elements) {
            return chunks_of(call_.at<float>(at) + first * elements, elements, queries_);
        };
        const auto keys_of = [&](float *data, int32_t elements) { return chunks_of(data, elements, keys_); };
        const auto lanes_of = [&](float *data, int32_t elements) { return buffer_of(data, keys_, elements); };
        const auto tile_of = [&](float *data) { return buffer_of(data, keys_, queries_); };
        const int32_t head_dim = layout_.head_dim, head_dim_v = layout_.head_dim_v;
        const KernelBuffer lse = {call_.at<float>(layout_.lse) + first, HEED_F32, 1, {queries_}, {1}};
        const KernelBuffer delta = {call_.at<float>(layout_.delta) + first, HEED_F32, 1, {queries_}, {1}};
        const KernelBuffer mask = {mask_, HEED_U8, 2, {keys_, queries_}, {1, keys_}};
        const KernelBuffer dq = chunks_of(dq_of(head) + int64_t{row} * layout_.head_dim, layout_.head_dim, queries_);
        const KernelBuffer dk = keys_of(dk_, head_dim), dv = keys_of(dv_, head_dim_v);
        const bool special_rows = call_.at<uint8_t>(layout_.special)[first / queries_] != 0;
        const int32_t form = form_of(row, key), careful = special_rows || special_keys_, form_of_mask = mask_form(p_),
                      has_bias = p_.has_bias, symmetric = p_.alibi_symmetric;
        const float softcap = kernel_softcap(p_.softcap), slope = p_.has_alibi ? call_.args.alibi_slopes[head] : 0,
                    dropout_scale = p_.dropout_p < 1 ? 1 / (1 - p_.dropout_p) : 0;
        const uint64_t threshold = dropout_threshold(p_.dropout_p), row_elements = static_cast<uint64_t>(p_.max_kv_len);
        const int64_t rows_before = (int64_t{seq_.place.index} * p_.num_heads + head) * p_.max_q_len + row;
        const uint64_t element = static_cast<uint64_t>(rows_before) * row_elements + static_cast<uint64_t>(key);
        const int code = call_op_kernel(*layout_.tile,
                                        {rows_of(layout_.q, head_dim),
                                         rows_of(layout_.dout, head_dim_v),
                                         keys_of(k_, head_dim),
                                         lanes_of(k_lanes_, p_.head_dim),
                                         lanes_of(v_lanes_, p_.head_dim_v),
                                         lse,
                                         delta,
                                         mask,
                                         tile_of(bias_),
                                         dq,
                                         dk,
                                         dv,
                                         form,
                                         careful,
                                         row,
                                         key,
                                         seq_.place.kv_len,
                                         seq_.visible.begin,
                                         seq_.visible.end,
                                         seq_.visible.position_offset,
                                         form_of_mask,
                                         has_bias,
                                         symmetric,
                                         p_.scale,
                                         softcap,
                                         slope,
                                         dropout_scale,
                                         call_.args.dropout_seed,
                                         call_.args.dropout_offset,
                                         threshold,
                                         element,
                                         row_elements,
                                         tile_of(grads_[0]),
                                         tile_of(grads_[1]),
                                         tile_of(grads_[2]),
                                         dq,
                                         dk,
                                         dv},
                                        message);
        if (code == 0) add_bias_grads(head, row, key);
        return code;
    }
};

}  // namespace

int64_t backward_scratch_bytes(const heed_problem &problem, const BackwardLayout &layout) {
    return BackwardScratch(problem, layout).total * int64_t{sizeof(float)};
}

int run_backward_keys(const BackwardCall &call, const BackwardSequence &sequence, int32_t kv_head, int32_t range,
                      void *scratch, char (&message)[512]) {
    return KeyRange(call, sequence, kv_head, range, scratch).run(message);
}

}  // namespace heed
