#include "runtime/cuda/token_launches.h"

#include <algorithm>

#include "runtime/read_once.h"
#include "runtime/status.h"

namespace heed::cuda {
namespace {

// A launch numbers the items of its segments with 32 bits, and the most items of a segment are its elements.
constexpr int64_t max_elements = int64_t{1} << 30;

}  // namespace

heed_status TokenMoves::add(const TokenSegment &segment) {
    const int64_t token_elements = int64_t{move_.num_heads} * move_.row_length;
    if (token_elements > max_elements) {
        return fail(HEED_UNSUPPORTED, "a token has %d heads of %d elements; CUDA serves 2^30 elements per token",
                    move_.num_heads, move_.row_length);
    }
    const int64_t most = max_elements / token_elements;
    const auto row_of = [&](int64_t t) {
        if (segment.positions == nullptr) return segment.table_position + t;
        const int64_t position = read_once(segment.positions[t]);
        return std::clamp<int64_t>(position, 0, move_.rotation->table_rows - 1);
    };
    int64_t begin = 0, first_row = row_of(0);
    for (int64_t t = 1; t <= segment.tokens; t++) {
        const int64_t row = t < segment.tokens ? row_of(t) : -1;
        if (row == first_row + (t - begin) && t - begin < most) continue;
        if (const heed_status status = add_run(segment, begin, t - begin, first_row)) return status;
        begin = t;
        first_row = row;
    }
    return HEED_OK;
}

heed_status TokenMoves::add_run(const TokenSegment &segment, int64_t first, int64_t tokens, int64_t table_position) {
    if (table_position > UINT32_MAX) {
        return fail(HEED_UNSUPPORTED, "a token's row of the RoPE tables is %lld; CUDA serves rows below 2^32",
                    static_cast<long long>(table_position));
    }
    if (count_ == num_move_segments) {
        if (const heed_status status = flush()) return status;
    }
    from_ = {segment.from.at(first, 0), segment.from.token_stride, segment.from.head_stride};
    to_ = {segment.to.at(first, 0), segment.to.token_stride, segment.to.head_stride};
    float *const scales = segment.scales == nullptr ? nullptr : segment.scales + first * move_.num_heads;
    uint64_t *const words = arguments_.word.word + int64_t{count_} * move_segment_words;
    words[0] = address_of(from_.data);
    words[1] = address_of(to_.data);
    words[2] = address_of(scales);
    words[3] = static_cast<uint64_t>(tokens) | static_cast<uint64_t>(table_position) << 32;
    from_addresses_ |= words[0];
    to_addresses_ |= words[1];
    max_tokens_ = std::max(max_tokens_, static_cast<int32_t>(tokens));
    count_++;
    return HEED_OK;
}

// Whether 16 bytes of a row can be read at once everywhere, and what they become be written.
bool TokenMoves::is_wide() const {
    const Rotation none = {}, &r = move_.rotation != nullptr ? *move_.rotation : none;
    const auto bytes = static_cast<uint64_t>(dtype_bytes(move_.kernel->dtype));
    const auto pair_run = static_cast<uint64_t>(r.num_pairs) * (r.interleaved ? 2 : 1);
    const auto stride = [](int64_t x) { return static_cast<uint64_t>(x); };
    uint64_t from = from_addresses_ | stride(from_.token_stride) | stride(from_.head_stride);
    from |= (static_cast<uint64_t>(move_.row_length) | pair_run) * bytes | address_of(r.cos) | address_of(r.sin);
    uint64_t to = to_addresses_ | stride(to_.token_stride) | stride(to_.head_stride);
    if (move_.kernel->op == Op::kv_append) to *= bytes;
    return (from | to) % 16 == 0;
}

heed_status TokenMoves::flush() {
    if (count_ == 0) return HEED_OK;
    const Rotation none = {}, &r = move_.rotation != nullptr ? *move_.rotation : none;
    arguments_.segments = count_;
    arguments_.max_tokens = max_tokens_;
    arguments_.num_heads = move_.num_heads;
    arguments_.row_length = move_.row_length;
    arguments_.num_pairs = r.num_pairs;
    arguments_.interleaved = r.interleaved;
    arguments_.wide = is_wide();
    arguments_.direction = r.direction;
    arguments_.from_token = static_cast<uint64_t>(from_.token_stride);
    arguments_.from_head = static_cast<uint64_t>(from_.head_stride);
    arguments_.to_token = static_cast<uint64_t>(to_.token_stride);
    arguments_.to_head = static_cast<uint64_t>(to_.head_stride);
    arguments_.cos = address_of(r.cos);
    arguments_.sin = address_of(r.sin);
    arguments_.named = named(to_.data);
    const heed_status status = launch_op(*move_.kernel, arguments_, launches_);
    count_ = max_tokens_ = 0;
    from_addresses_ = to_addresses_ = 0;
    return status;
}

}  // namespace heed::cuda
