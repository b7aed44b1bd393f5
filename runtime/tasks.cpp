#include "tasks.h"

#include <algorithm>
#include <cinttypes>
#include <limits>

#include "status.h"
#include "view.h"

namespace heed {
namespace {

constexpr int64_t min_int32 = std::numeric_limits<int32_t>::min(), max_int32 = std::numeric_limits<int32_t>::max();

// The caller's memory may change while it is read: each value is read once.
using Metadata = const volatile int32_t *;

// Where a sequence lies and what its rows see.
struct Sequence {
    int32_t q_len, first_q, kv_len, first_key;
    int64_t q_offset;
};

// Walks prefix sums: segment after segment, inside [0, total) whatever the memory holds.
class Segments {
public:
    Segments(const char *name, const char *longest_name, const int32_t *sums, int32_t longest, int32_t total)
        : name_(name), longest_name_(longest_name), sums_(sums), longest_(longest), total_(total) {}

    heed_status start() const {
        const int32_t first = sums_[0];
        if (first == 0) return HEED_OK;
        return fail(HEED_INVALID_ARGUMENT, "%s[0] is %d; it must be 0", name_, first);
    }
    heed_status next(int32_t b, int32_t *begin, int32_t *length) {
        const int32_t end = sums_[b + 1], most = std::min(longest_, total_ - end_);
        if (end < end_ || end - end_ > most) {
            return fail(HEED_INVALID_ARGUMENT,
                        "%s[%d] is %d behind %d; it must grow by 0..%d (%s is %d, %d tokens in all)", name_, b + 1, end,
                        end_, most, longest_name_, longest_, total_);
        }
        *begin = end_;
        *length = end - end_;
        end_ = end;
        return HEED_OK;
    }
    heed_status finish(int32_t batch) const {
        if (end_ == total_) return HEED_OK;
        return fail(HEED_INVALID_ARGUMENT, "%s[%d] is %d; it must be %d, all tokens of the plan", name_, batch, end_,
                    total_);
    }

private:
    const char *const name_, *const longest_name_;
    const Metadata sums_;
    const int32_t longest_, total_;
    int32_t end_ = 0;
};

heed_status check_pages(const heed_problem &p, Metadata table, int32_t b, int32_t kv_len) {
    const int64_t pages = (int64_t{kv_len} + p.page_size - 1) / p.page_size;
    if (pages > p.max_pages_per_seq) {
        return fail(HEED_INVALID_ARGUMENT, "kv_lens[%d] is %d; max_pages_per_seq %d pages of %d tokens hold less", b,
                    kv_len, p.max_pages_per_seq, p.page_size);
    }
    for (int64_t i = 0; i < pages; i++) {
        const int32_t page = table[int64_t{b} * p.max_pages_per_seq + i];
        if (page < 0 || page >= p.num_pages) {
            return fail(HEED_INVALID_ARGUMENT,
                        "page_table[%d][%" PRId64 "] is %d; it must be 0 or more, below num_pages, %d", b, i, page,
                        p.num_pages);
        }
    }
    return HEED_OK;
}

// All but what prefix sums say.
heed_status read_sequence(const heed_problem &p, const heed_args &args, int32_t b, Sequence *seq) {
    if (p.has_kv_lens) {
        seq->kv_len = *static_cast<Metadata>(args.kv_lens + b);
        if (seq->kv_len < 0 || seq->kv_len > p.max_kv_len) {
            return fail(HEED_INVALID_ARGUMENT, "kv_lens[%d] is %d; it must be 0..%d, the plan's max_kv_len", b,
                        seq->kv_len, p.max_kv_len);
        }
    }
    if (p.kv_storage == HEED_KV_PAGED) {
        if (const heed_status status = check_pages(p, args.page_table, b, seq->kv_len)) return status;
    }
    if (p.position == HEED_BOTTOM_RIGHT) seq->q_offset = int64_t{seq->kv_len} - seq->q_len;
    if (p.position == HEED_EXPLICIT) seq->q_offset = *static_cast<Metadata>(args.q_offsets + b);
    return HEED_OK;
}

// The task of a sequence's first row of its first head: with causal, window and position folded into the range that row
// i sees, [max(0, i + visible_begin), min(kv_len, i + visible_end)). 64-bit inside; the clamps change no visible set,
// since 0 <= i and i + kv_len < 2^31.
void fill_task(const heed_problem &p, const Sequence &seq, int32_t b, int32_t task[num_task_fields]) {
    int64_t begin = min_int32, end = seq.kv_len;
    if (p.window_left >= 0) begin = std::clamp(seq.q_offset - p.window_left, min_int32, int64_t{seq.kv_len});
    if (p.causal || p.window_right >= 0) {
        const int64_t right = p.causal ? 0 : p.window_right;
        end = std::clamp(seq.q_offset + right + 1, min_int32, int64_t{seq.kv_len});
    }
    task[task_sequence] = b;
    task[task_head] = 0;
    task[task_kv_head] = 0;
    task[task_first_row] = 0;
    task[task_q_len] = seq.q_len;
    task[task_q_batch] = p.q_storage == HEED_Q_VARLEN ? 0 : b;
    task[task_first_q] = seq.first_q;
    task[task_kv_len] = seq.kv_len;
    task[task_kv_batch] = p.kv_storage == HEED_KV_CONTIGUOUS ? b : 0;
    task[task_first_key] = seq.first_key;
    task[task_visible_begin] = static_cast<int32_t>(begin);
    task[task_visible_end] = static_cast<int32_t>(end);
    task[task_position_offset] = static_cast<int32_t>(std::clamp(seq.q_offset, min_int32, max_int32));
}

int32_t *write_tasks(const heed_problem &p, const Kernel &row, const Sequence &seq, int32_t b, int32_t *tasks) {
    const bool decode = row.phase == Phase::decode;
    const int32_t group_size = p.num_heads / p.num_kv_heads, num_rows = seq.q_len * (decode ? group_size : 1);
    int32_t task[num_task_fields];
    fill_task(p, seq, b, task);
    for (int32_t head = 0; head < p.num_heads; head += decode ? group_size : 1) {
        task[task_head] = head;
        task[task_kv_head] = head / group_size;
        for (int32_t first = 0; first < num_rows; first += row.row_block) {
            task[task_first_row] = first;
            tasks = std::copy(task, task + num_task_fields, tasks);
        }
    }
    return tasks;
}

}  // namespace

int64_t max_tasks(const heed_problem &p, const Kernel &row) {
    const bool decode = row.phase == Phase::decode;
    const int64_t group = decode ? p.num_heads / p.num_kv_heads : 1, heads = decode ? p.num_kv_heads : p.num_heads;
    int64_t rows = 0, blocks = 0, tasks = 0;
    if (!checked_mul(p.max_q_len, group, &rows) || rows > max_int32 - row.row_block) return -1;
    if (!checked_mul((rows + row.row_block - 1) / row.row_block, p.batch, &blocks)) return -1;
    if (p.q_storage == HEED_Q_VARLEN) {
        // Whole blocks, and at most one that is not full per sequence.
        blocks = std::min(blocks, int64_t{p.total_q} * group / row.row_block + p.batch);
    }
    return checked_mul(blocks, heads, &tasks) && tasks <= max_int32 / num_task_fields ? tasks : -1;
}

heed_status resolve_tasks(const heed_problem &p, const Kernel &row, const heed_args &args, int32_t *tasks,
                          Workload *work) {
    const bool ragged_q = p.q_storage == HEED_Q_VARLEN, ragged_kv = p.kv_storage == HEED_KV_VARLEN;
    Segments queries("cu_seqlens_q", "max_q_len", args.cu_seqlens_q, p.max_q_len, p.total_q);
    Segments keys("cu_seqlens_kv", "max_kv_len", args.cu_seqlens_kv, p.max_kv_len, p.total_kv);
    heed_status status = ragged_q ? queries.start() : HEED_OK;
    if (!status && ragged_kv) status = keys.start();

    int32_t *next_task = tasks;
    for (int32_t b = 0; !status && b < p.batch; b++) {
        Sequence seq = {p.max_q_len, 0, p.max_kv_len, 0, 0};
        if (ragged_q) status = queries.next(b, &seq.first_q, &seq.q_len);
        if (!status && ragged_kv) status = keys.next(b, &seq.first_key, &seq.kv_len);
        if (!status) status = read_sequence(p, args, b, &seq);
        if (status || tasks == nullptr) continue;
        work->pairs += static_cast<double>(seq.q_len) * seq.kv_len * p.num_heads;
        next_task = write_tasks(p, row, seq, b, next_task);
    }
    if (!status && ragged_q) status = queries.finish(p.batch);
    if (!status && ragged_kv) status = keys.finish(p.batch);
    if (!status && tasks != nullptr) work->num_tasks = static_cast<int32_t>((next_task - tasks) / num_task_fields);
    return status;
}

}  // namespace heed
