#include "runtime/cpu/backward_keys.h"

#include <algorithm>
#include <limits>

#include "runtime/ops/gradient_checks.h"
#include "runtime/status.h"
#include "runtime/view.h"
#include "runtime/weight_element.h"

namespace heed {

KeysScratch::KeysScratch(const BackwardLayout &layout, Parts *scratch) {
    const int64_t keys = layout.tile->columns, logits = keys * layout.tile->rows;
    scratch->take(keys * layout.head_dim, &dk_);
    scratch->take(keys * layout.head_dim_v, &dv_);
    scratch->take(logits, &logit_grads_);
    scratch->take(logits, &bias_);
    scratch->take(logits, &mask_);
}

BackwardKeys::BackwardKeys(const BackwardCall &call, const BackwardSequence &sequence, const KeysTask &task,
                           Parts *scratch, bool rows_first)
    : KeysScratch(call.layout, scratch), call_(call), p_(call.plan.problem), layout_(call.layout), seq_(sequence),
      values_(p_), task_(task), queries_(layout_.tile->rows), keys_(layout_.tile->columns),
      kv_batch_(p_.kv_storage == HEED_KV_CONTIGUOUS ? sequence.place.index : 0), stride_i_(rows_first ? 1 : keys_),
      stride_j_(rows_first ? queries_ : 1) {
    const int64_t segment = (task.range + task.step) % layout_.num_ranges,
                  rows = int64_t{layout_.blocks_per_segment} * queries_;
    first_row_ = narrow(std::min<int64_t>(seq_.place.q_len, segment * rows));
    end_row_ = narrow(std::min<int64_t>(seq_.place.q_len, (segment + 1) * rows));
}

int BackwardKeys::run(char (&message)[512]) {
    const int32_t group = p_.num_heads / p_.num_kv_heads;
    for (int32_t h = 0; h < group && task_.step == 0 && first_row_ < end_row_; h++) {
        float *const dq = dq_at(task_.kv_head * group + h, first_row_);
        std::fill(dq, dq + round_up(end_row_ - first_row_, queries_) * layout_.head_dim, 0.0f);
    }
    const int64_t per_range = int64_t{layout_.blocks_per_range} * keys_, first = task_.range * per_range,
                  end = std::min<int64_t>(seq_.place.kv_len, first + per_range);
    for (int64_t key = first; key < end; key += keys_) {
        if (const int code = run_block(static_cast<int32_t>(key), message)) return code;
    }
    return 0;
}

// For several ranges in the workspace, from step to step.
void BackwardKeys::place_sums(int32_t key) {
    if (layout_.num_ranges > 1) {
        const int64_t block = seq_.first_key_block * p_.num_kv_heads +
                              int64_t{task_.kv_head} * ((seq_.place.kv_len + keys_ - 1) / keys_) + key / keys_;
        dk_ = call_.at<float>(layout_.keys) + block * keys_ * (layout_.head_dim + layout_.head_dim_v);
        dv_ = dk_ + int64_t{keys_} * layout_.head_dim;
    }
    if (task_.step > 0) return;
    std::fill(dk_, dk_ + int64_t{keys_} * layout_.head_dim, 0.0f);
    std::fill(dv_, dv_ + int64_t{keys_} * layout_.head_dim_v, 0.0f);
}

int BackwardKeys::run_block(int32_t key, char (&message)[512]) {
    place_sums(key);
    const int32_t group = p_.num_heads / p_.num_kv_heads;
    bool loaded = false;
    for (int32_t h = 0; h < group; h++) {
        if (const int code = run_head(task_.kv_head * group + h, key, &loaded, message)) return code;
    }
    if (task_.step + 1 < layout_.num_ranges) return 0;
    const ProblemViews &views = call_.plan.views;
    const int code = store_keys(call_.gradients.dk, views.k, key, p_.head_dim, dk_, p_.scale, message);
    return code != 0 ? code : store_keys(call_.gradients.dv, views.v, key, p_.head_dim_v, dv_, 1, message);
}

int BackwardKeys::run_head(int32_t head, int32_t key, bool *loaded, char (&message)[512]) {
    for (int32_t row = first_row_; row < end_row_; row += queries_) {
        if (!sees(row, key)) continue;
        int code = *loaded ? 0 : load_keys(key, message);
        *loaded = true;
        load_logit_inputs(head, row, key);
        if (code == 0) code = call_tile(head, row, key, message);
        if (code == 0) code = add_bias_grads(head, row, key, message);
        if (code != 0) return code;
    }
    return 0;
}

template <typename Arguments>
void BackwardKeys::set_logits(const TilePlace &tile, Arguments *arguments) const {
    Arguments &a = *arguments;
    const int64_t first = call_.row_of(seq_, tile.head) + tile.row;
    a.lse = packed_buffer(call_.at<float>(layout_.lse) + first, HEED_F32, {queries_});
    a.delta = packed_buffer(call_.at<float>(layout_.delta) + first, HEED_F32, {queries_});
    a.mask = logits(mask_, HEED_U8);
    a.bias = logits(bias_, HEED_F32);
    KernelBuffer *const score_buffers[] = {&a.score_buffer_0, &a.score_buffer_1, &a.score_buffer_2, &a.score_buffer_3};
    for (int n = 0; n < max_score_buffers; n++) {
        static int32_t none = 0;
        const heed_tensor &given = call_.args.score_buffers[n];
        const bool read = layout_.tile->score_buffers[0] != '\0' && given.data != nullptr;
        *score_buffers[n] = packed_buffer(read ? given.data : &none, HEED_I32, {read ? narrow(given.size) : 1});
    }
    a.sequence = seq_.place.index;
    a.head = tile.head;
    a.form = form_of(tile.row, tile.key, tile.count);
    a.first_query = tile.row;
    a.first_key = tile.key;
    // Rows after the last see nothing that it does not: a key of none may hold NaN.
    a.kv_len = static_cast<int32_t>(std::min<int64_t>(seq_.place.kv_len, last_row(tile.row) + seq_.visible.end));
    a.visible_begin = seq_.visible.begin;
    a.visible_end = seq_.visible.end;
    a.position_offset = seq_.visible.position_offset;
    set_values(values_, &a);
    set_values(DropoutValues(p_, call_.args), &a);
    set_head_values(p_, call_.args, tile.head, &a);
    const int64_t rows_before = (int64_t{seq_.place.index} * p_.num_heads + tile.head) * p_.max_q_len + tile.row;
    a.row_elements = static_cast<uint64_t>(p_.max_kv_len);
    a.first_element = static_cast<uint64_t>(rows_before) * a.row_elements + static_cast<uint64_t>(tile.key);
}

template void BackwardKeys::set_logits(const TilePlace &, BackwardTileArguments *) const;
template void BackwardKeys::set_logits(const TilePlace &, BackwardTileBf16Arguments *) const;

bool BackwardKeys::nonfinite_rows(int32_t head, int32_t row) const {
    return call_.at<uint8_t>(layout_.nonfinite)[packed_row(head, row) / queries_] != 0;
}

int32_t BackwardKeys::count_at(int32_t key) const { return std::min(keys_, seq_.place.kv_len - key); }

TensorRows BackwardKeys::rows_at(const heed_tensor &tensor, const View &view, int32_t key, int32_t elements) const {
    const int64_t offset = kv_batch_ * view.stride[0] + (int64_t{seq_.place.first_key} + key) * view.stride[1] +
                           task_.kv_head * view.stride[2];
    return {static_cast<char *>(tensor.data) + offset * dtype_bytes(p_.dtype), view.stride[1], elements, count_at(key)};
}

KernelBuffer BackwardKeys::logits(void *data, heed_dtype dtype) const {
    if (stride_i_ == 1) return packed_buffer(data, dtype, {queries_, keys_});
    return packed_buffer(data, dtype, {keys_, queries_});
}

int BackwardKeys::store_keys(const heed_tensor &tensor, const View &view, int32_t key, int32_t elements, float *rows,
                             float factor, char (&message)[512]) const {
    if (tensor.data == nullptr) return 0;
    const KernelBuffer sums = chunked_buffer(rows, narrow(round_up(elements, backward_chunk)), keys_);
    return store_rows(*layout_.store, sums, factor, p_.dtype, rows_at(tensor, view, key, elements), message);
}

int64_t BackwardKeys::last_row(int32_t row) const { return std::min(seq_.place.q_len, row + queries_) - 1; }

// Whether some row of the block sees some key of the block, masks apart; and whether each sees `count` of them.
bool BackwardKeys::sees(int32_t row, int32_t key) const {
    return last_row(row) + seq_.visible.end > key && int64_t{row} + seq_.visible.begin < int64_t{key} + keys_;
}
bool BackwardKeys::sees_all(int32_t row, int32_t key, int32_t count) const {
    return key + count <= seq_.place.kv_len && int64_t{row} + seq_.visible.end >= int64_t{key} + count &&
           last_row(row) + seq_.visible.begin <= key;
}

int32_t BackwardKeys::seen_at(int32_t row, int32_t key) const {
    return static_cast<int32_t>(std::min<int64_t>(count_at(key), last_row(row) + seq_.visible.end - key));
}

int32_t BackwardKeys::form_of(int32_t row, int32_t key, int32_t count) const {
    if (p_.dropout_p > 0) return backward_dropped;
    if (features_of(p_) != 0 || layout_.tile->score_mod[0] != '\0') return backward_scored;
    return sees_all(row, key, count) ? backward_plain : backward_positioned;
}

// The tile of a mask or bias, visit(index in the tensor, index in the tile), rows and keys that do not exist apart.
template <typename Visit>
void BackwardKeys::for_each_logit(const View &view, int32_t head, int32_t row, int32_t key, Visit visit) const {
    const int64_t rows = last_row(row) + 1 - row, count = count_at(key);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t first = seq_.place.index * view.stride[0] + head * view.stride[1] + (row + i) * view.stride[2] +
                              key * view.stride[3];
        for (int64_t j = 0; j < count; j++) visit(first + j * view.stride[3], i * stride_i_ + j * stride_j_);
    }
}

// Rows that do not exist see no key: one that all others do not see may hold NaN.
void BackwardKeys::load_logit_inputs(int32_t head, int32_t row, int32_t key) const {
    const int64_t elements = int64_t{keys_} * queries_;
    if (p_.has_mask) {
        const auto *const mask = static_cast<const uint8_t *>(call_.args.mask.data);
        std::fill(mask_, mask_ + elements, uint8_t{p_.mask_true_hides});
        for_each_logit(call_.plan.views.mask, head, row, key,
                       [&](int64_t from, int64_t to) { mask_[to] = mask[from]; });
    }
    if (p_.has_bias) {
        std::fill(bias_, bias_ + elements, -std::numeric_limits<float>::infinity());
        for_each_logit(call_.plan.views.bias, head, row, key, [&](int64_t from, int64_t to) {
            bias_[to] = load_element(call_.args.bias.data, from, p_.bias_dtype);
        });
    }
}

int BackwardKeys::add_bias_grads(int32_t head, int32_t row, int32_t key, char (&message)[512]) const {
    if (call_.gradients.dbias.data == nullptr) return 0;
    const KernelBuffer grads = {logit_grads_,
                                HEED_F32,
                                2,
                                {count_at(key), narrow(last_row(row)) + 1 - row},
                                {narrow(stride_j_), narrow(stride_i_)}};
    return add_bias_tile(call_, {grads, seq_.place.index, head, row, key}, message);
}

int64_t backward_scratch_bytes(const heed_problem &problem, const BackwardLayout &layout) {
    Parts parts(nullptr);
    if (layout.has_words()) take_bf16_tiles(layout, &parts);
    if (!layout.has_words()) take_float_tiles(problem, layout, &parts);
    return parts.total();
}

int run_backward_keys(const BackwardCall &call, const BackwardSequence &sequence, const KeysTask &task, void *scratch,
                      char (&message)[512]) {
    Parts parts(scratch);
    return call.layout.has_words() ? run_bf16_tiles(call, sequence, task, &parts, message)
                                   : run_float_tiles(call, sequence, task, &parts, message);
}

}  // namespace heed
