#include "runtime/sequences.h"

#include <algorithm>
#include <cinttypes>
#include <limits>

#include "runtime/read_once.h"
#include "runtime/status.h"
#include "runtime/view.h"

namespace heed {
namespace {

constexpr int64_t min_int32 = std::numeric_limits<int32_t>::min();

heed_status check_pages(const heed_problem &p, const int32_t *table, int32_t b, int32_t kv_len) {
    const int64_t pages = (int64_t{kv_len} + p.page_size - 1) / p.page_size;
    if (pages > p.max_pages_per_seq) {
        return fail(HEED_INVALID_ARGUMENT, "kv_lens[%d] is %d; max_pages_per_seq %d pages of %d tokens hold less", b,
                    kv_len, p.max_pages_per_seq, p.page_size);
    }
    for (int64_t i = 0; i < pages; i++) {
        const int32_t page = read_once(table[int64_t{b} * p.max_pages_per_seq + i]);
        if (page < 0 || page >= p.num_pages) {
            return fail(HEED_INVALID_ARGUMENT,
                        "page_table[%d][%" PRId64 "] is %d; it must be 0 or more, below num_pages, %d", b, i, page,
                        p.num_pages);
        }
    }
    return HEED_OK;
}

}  // namespace

heed_status SequenceReader::Segments::start() const {
    const int32_t first = read_once(sums[0]);
    if (first == 0) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "%s[0] is %d; it must be 0", name, first);
}

heed_status SequenceReader::Segments::next(int32_t b, int32_t *begin, int32_t *length) {
    const int32_t next_end = read_once(sums[b + 1]), most = std::min(longest, total - end);
    if (next_end < end || next_end - end > most) {
        return fail(HEED_INVALID_ARGUMENT, "%s[%d] is %d after %d; it must grow by 0..%d (%s is %d, %d tokens in all)",
                    name, b + 1, next_end, end, most, longest_name, longest, total);
    }
    *begin = end;
    *length = next_end - end;
    end = next_end;
    return HEED_OK;
}

heed_status SequenceReader::Segments::finish(int32_t batch) const {
    if (end == total) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "%s[%d] is %d; it must be %d, all tokens of the plan", name, batch, end, total);
}

SequenceReader::SequenceReader(const heed_problem &p, const heed_args &args)
    : problem_(p), args_(args), queries_{"cu_seqlens_q", "max_q_len", args.cu_seqlens_q, p.max_q_len, p.total_q},
      keys_{"cu_seqlens_kv", "max_kv_len", args.cu_seqlens_kv, p.max_kv_len, p.total_kv} {}

heed_status SequenceReader::start() const {
    heed_status status = problem_.q_storage == HEED_Q_VARLEN ? queries_.start() : HEED_OK;
    if (!status && problem_.kv_storage == HEED_KV_VARLEN) status = keys_.start();
    return status;
}

// All but what prefix sums say.
heed_status SequenceReader::read_lengths(Sequence *seq) const {
    const heed_problem &p = problem_;
    const int32_t b = seq->index;
    if (p.has_kv_lens) {
        seq->kv_len = read_once(args_.kv_lens[b]);
        if (seq->kv_len < 0 || seq->kv_len > p.max_kv_len) {
            return fail(HEED_INVALID_ARGUMENT, "kv_lens[%d] is %d; it must be 0..%d, the plan's max_kv_len", b,
                        seq->kv_len, p.max_kv_len);
        }
    }
    if (p.kv_storage == HEED_KV_PAGED) {
        if (const heed_status status = check_pages(p, args_.page_table, b, seq->kv_len)) return status;
    }
    if (p.position == HEED_BOTTOM_RIGHT) seq->q_offset = int64_t{seq->kv_len} - seq->q_len;
    if (p.position == HEED_EXPLICIT) seq->q_offset = read_once(args_.q_offsets[b]);
    return HEED_OK;
}

heed_status SequenceReader::next(Sequence *seq) {
    const int32_t b = index_++;
    *seq = {b, problem_.max_q_len, 0, problem_.max_kv_len, 0, 0};
    heed_status status = HEED_OK;
    if (problem_.q_storage == HEED_Q_VARLEN) status = queries_.next(b, &seq->first_q, &seq->q_len);
    if (!status && problem_.kv_storage == HEED_KV_VARLEN) status = keys_.next(b, &seq->first_key, &seq->kv_len);
    return status ? status : read_lengths(seq);
}

heed_status SequenceReader::finish() const {
    heed_status status = problem_.q_storage == HEED_Q_VARLEN ? queries_.finish(problem_.batch) : HEED_OK;
    if (!status && problem_.kv_storage == HEED_KV_VARLEN) status = keys_.finish(problem_.batch);
    return status;
}

// 64-bit inside; the clamps change no visible set, since 0 <= i < q_len and i + kv_len < 2^31. Kernels subtract a key
// from an end: one far below all keys would wrap around there.
VisibleRange visible_range(const heed_problem &p, const Sequence &seq) {
    int64_t begin = min_int32, end = seq.kv_len;
    if (p.window_left >= 0) begin = std::clamp(seq.q_offset - p.window_left, min_int32, int64_t{seq.kv_len});
    if (p.causal || p.window_right >= 0) {
        const int64_t right = p.causal ? 0 : p.window_right;
        end = std::clamp(seq.q_offset + right + 1, -int64_t{seq.q_len}, int64_t{seq.kv_len});
    }
    return {static_cast<int32_t>(begin), static_cast<int32_t>(end),
            static_cast<int32_t>(std::clamp(seq.q_offset, min_int32, max_int32))};
}

bool is_uniform(const heed_problem &p) {
    return p.q_storage == HEED_Q_DENSE && p.kv_storage == HEED_KV_CONTIGUOUS && !p.has_kv_lens &&
           p.position != HEED_EXPLICIT;
}

Sequence uniform_sequence(const heed_problem &p) {
    const int64_t q_offset = p.position == HEED_BOTTOM_RIGHT ? int64_t{p.max_kv_len} - p.max_q_len : 0;
    return {0, p.max_q_len, 0, p.max_kv_len, 0, q_offset};
}

bool copies_pages(const heed_problem &p) { return p.kv_storage == HEED_KV_PAGED && !p.metadata_on_device; }

int32_t num_host_launches(const heed_problem &p) {
    return static_cast<int32_t>((int64_t{p.batch} + sequences_per_launch - 1) / sequences_per_launch);
}

}  // namespace heed
