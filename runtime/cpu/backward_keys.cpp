#include "cpu/backward_keys.h"

#include <algorithm>

#include "cpu/backward_rows.h"
#include "float_environment.h"
#include "ops/gradient_checks.h"
#include "status.h"
#include "weight_element.h"

namespace heed {
namespace {

// Parts of the scratch one behind the other.
struct SharedParts {
    int64_t dk, dv, logit_grads, bias, mask, total = 0;

    explicit SharedParts(const BackwardLayout &layout) {
        const int64_t keys = layout.tile->columns, logits = keys * layout.tile->rows;
        const auto take = [&](int64_t count) { return take_floats(count, &total); };
        dk = take(keys * layout.head_dim);
        dv = take(keys * layout.head_dim_v);
        logit_grads = take(logits);
        bias = take(logits);
        mask = take(logits / 4);
    }
};

}  // namespace

int64_t take_floats(int64_t count, int64_t *total) {
    const int64_t at = *total;
    *total += round_up(count, 32);
    return at;
}

KernelBuffer chunked_buffer(float *data, int32_t elements, int32_t rows) {
    constexpr int32_t chunk = backward_chunk;
    return {data, HEED_F32, 3, {chunk, rows, elements / chunk}, {1, chunk, chunk * rows}};
}

int64_t BackwardKeys::shared_scratch(const BackwardLayout &layout) { return SharedParts(layout).total; }

BackwardKeys::BackwardKeys(const BackwardCall &call, const BackwardSequence &sequence, int32_t kv_head, int32_t range,
                           float *scratch, bool rows_first)
    : call_(call), p_(call.plan.problem), layout_(call.layout), seq_(sequence), values_(p_), kv_head_(kv_head),
      range_(range), queries_(layout_.tile->rows), keys_(layout_.tile->columns),
      kv_batch_(p_.kv_storage == HEED_KV_CONTIGUOUS ? sequence.place.index : 0), stride_i_(rows_first ? 1 : keys_),
      stride_j_(rows_first ? queries_ : 1) {
    const SharedParts at(layout_);
    dk_ = scratch + at.dk;
    dv_ = scratch + at.dv;
    logit_grads_ = scratch + at.logit_grads;
    bias_ = scratch + at.bias;
    mask_ = reinterpret_cast<uint8_t *>(scratch + at.mask);
}

int BackwardKeys::run(char (&message)[512]) {
    const int32_t group = p_.num_heads / p_.num_kv_heads;
    for (int32_t h = 0; h < group; h++) {
        float *const dq = dq_of(kv_head_ * group + h);
        std::fill(dq, dq + seq_.num_rows * layout_.head_dim, 0.0f);
    }
    const int64_t per_range = int64_t{layout_.blocks_per_range} * keys_, first = range_ * per_range,
                  end = std::min<int64_t>(seq_.place.kv_len, first + per_range);
    for (int64_t key = first; key < end; key += keys_) {
        if (const int code = run_block(static_cast<int32_t>(key), message)) return code;
    }
    return 0;
}

int BackwardKeys::run_block(int32_t key, char (&message)[512]) {
    const ProblemViews &views = call_.plan.views;
    {
        const DefaultFloatEnvironment environment;
        load_keys(key);
        std::fill(dk_, dk_ + int64_t{keys_} * layout_.head_dim, 0.0f);
        std::fill(dv_, dv_ + int64_t{keys_} * layout_.head_dim_v, 0.0f);
    }
    const int32_t group = p_.num_heads / p_.num_kv_heads;
    for (int32_t h = kv_head_ * group; h < (kv_head_ + 1) * group; h++) {
        for (int32_t row = 0; row < seq_.place.q_len; row += queries_) {
            if (!sees(row, key)) continue;
            load_logit_inputs(h, row, key);
            if (const int code = call_tile(h, row, key, message)) return code;
            add_bias_grads(h, row, key);
        }
    }
    const DefaultFloatEnvironment environment;
    store_keys(call_.gradients.dk, views.k, key, p_.head_dim, layout_.head_dim, dk_, p_.scale);
    store_keys(call_.gradients.dv, views.v, key, p_.head_dim_v, layout_.head_dim_v, dv_, 1);
    return 0;
}

template <typename Arguments>
void BackwardKeys::set_logits(const TilePlace &tile, Arguments *arguments) const {
    Arguments &a = *arguments;
    const int64_t first = packed_row(tile.head, tile.row);
    a.lse = {call_.at<float>(layout_.lse) + first, HEED_F32, 1, {queries_}, {1}};
    a.delta = {call_.at<float>(layout_.delta) + first, HEED_F32, 1, {queries_}, {1}};
    a.mask = logits(mask_, HEED_U8);
    a.bias = logits(bias_, HEED_F32);
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
    a.slope = p_.has_alibi ? call_.args.alibi_slopes[tile.head] : 0;
    const int64_t rows_before = (int64_t{seq_.place.index} * p_.num_heads + tile.head) * p_.max_q_len + tile.row;
    a.row_elements = static_cast<uint64_t>(p_.max_kv_len);
    a.first_element = static_cast<uint64_t>(rows_before) * a.row_elements + static_cast<uint64_t>(tile.key);
}

template void BackwardKeys::set_logits(const TilePlace &, BackwardTileArguments *) const;
template void BackwardKeys::set_logits(const TilePlace &, BackwardTileBf16Arguments *) const;

float *BackwardKeys::dq_of(int32_t head) const {
    const int64_t row = range_ * layout_.num_rows + call_.row_of(seq_, head);
    return call_.at<float>(layout_.dq) + row * layout_.head_dim;
}

bool BackwardKeys::special_rows(int32_t head, int32_t row) const {
    return call_.at<uint8_t>(layout_.special)[packed_row(head, row) / queries_] != 0;
}

int32_t BackwardKeys::count_at(int32_t key) const { return std::min(keys_, seq_.place.kv_len - key); }

int64_t BackwardKeys::offset(const View &view, int32_t key) const {
    return kv_batch_ * view.stride[0] + (int64_t{seq_.place.first_key} + key) * view.stride[1] +
           kv_head_ * view.stride[2];
}

const char *BackwardKeys::row_at(const heed_tensor &tensor, const View &view, int32_t key) const {
    return static_cast<const char *>(tensor.data) + offset(view, key) * dtype_bytes(p_.dtype);
}

KernelBuffer BackwardKeys::logits(void *data, heed_dtype dtype) const {
    const bool rows_first = stride_i_ == 1;
    const int32_t inner = rows_first ? queries_ : keys_, outer = rows_first ? keys_ : queries_;
    return {data, dtype, 2, {inner, outer}, {1, inner}};
}

void BackwardKeys::store_keys(const heed_tensor &tensor, const View &view, int32_t key, int32_t elements,
                              int32_t padded, float *rows, float factor) const {
    if (tensor.data == nullptr) return;
    for (int32_t j = 0; j < count_at(key); j++) {
        store_row(ChunkedRow::at(rows, j, keys_, padded), factor, p_.dtype, elements,
                  const_cast<char *>(row_at(tensor, view, key + j)));
    }
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
    const bool changes = p_.has_mask || p_.has_bias || p_.has_alibi || values_.cap_logits();
    if (changes) return backward_scored;
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

void BackwardKeys::load_logit_inputs(int32_t head, int32_t row, int32_t key) const {
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

void BackwardKeys::add_bias_grads(int32_t head, int32_t row, int32_t key) const {
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
            sums[index] += logit_grads_[from];
        } else {
            store_element(call_.gradients.dbias.data, index, p_.bias_dtype, logit_grads_[from]);
        }
    });
}

int64_t backward_scratch_bytes(const heed_problem &problem, const BackwardLayout &layout) {
    const int64_t floats = layout.has_words() ? bf16_tiles_scratch(layout) : float_tiles_scratch(problem, layout);
    return floats * int64_t{sizeof(float)};
}

int run_backward_keys(const BackwardCall &call, const BackwardSequence &sequence, int32_t kv_head, int32_t range,
                      void *scratch, char (&message)[512]) {
    auto *const floats = static_cast<float *>(scratch);
    return call.layout.has_words() ? run_bf16_tiles(call, sequence, kv_head, range, floats, message)
                                   : run_float_tiles(call, sequence, kv_head, range, floats, message);
}

}  // namespace heed
