#include "tasks.h"

#include <algorithm>
#include <limits>

#include "kernel_call.h"
#include "sequences.h"
#include "view.h"

namespace heed {
namespace {

// The task of a sequence's first row of its first head. num_kv_batches: indices of k and v along their batch axis.
void fill_task(const heed_problem &p, const Sequence &seq, int64_t num_kv_batches, int32_t task[num_task_fields]) {
    const VisibleRange visible = visible_range(p, seq);
    task[task_sequence] = seq.index;
    task[task_head] = 0;
    task[task_kv_head] = 0;
    task[task_first_row] = 0;
    task[task_q_len] = seq.q_len;
    task[task_q_batch] = p.q_storage == HEED_Q_VARLEN ? 0 : seq.index;
    task[task_first_q] = seq.first_q;
    task[task_kv_len] = seq.kv_len;
    task[task_kv_batch] = p.kv_storage == HEED_KV_CONTIGUOUS && num_kv_batches > 1 ? seq.index : 0;
    task[task_first_key] = seq.first_key;
    task[task_visible_begin] = visible.begin;
    task[task_visible_end] = visible.end;
    task[task_position_offset] = visible.position_offset;
}

int32_t *write_tasks(const heed_problem &p, const Kernel &row, const Sequence &seq, int64_t num_kv_batches,
                     int32_t *tasks) {
    const bool decode = row.phase == Phase::decode;
    const int32_t group_size = p.num_heads / p.num_kv_heads, num_rows = seq.q_len * (decode ? group_size : 1);
    int32_t task[num_task_fields];
    fill_task(p, seq, num_kv_batches, task);
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
    const int64_t rows = p.max_q_len * group;
    if (rows > max_int32 - row.row_block) return -1;
    int64_t blocks = (rows + row.row_block - 1) / row.row_block * p.batch;
    if (p.q_storage == HEED_Q_VARLEN) {
        // Whole blocks, and at most one that is not full per sequence.
        blocks = std::min(blocks, int64_t{p.total_q} * group / row.row_block + p.batch);
    }
    const Size tasks = Size{blocks} * heads;
    return tasks.at_most(max_int32 / num_task_fields) ? tasks.value : -1;
}

heed_status resolve_tasks(const heed_problem &p, const ProblemViews &views, const Kernel &row, const heed_args &args,
                          int32_t *tasks, Workload *work) {
    const int64_t num_kv_batches = kernel_views(p, views).k.extent[0];
    SequenceReader reader(p, args);
    heed_status status = reader.start();
    int32_t *next_task = tasks;
    for (int32_t b = 0; !status && b < p.batch; b++) {
        Sequence seq;
        status = reader.next(&seq);
        if (status || tasks == nullptr) continue;
        work->pairs += static_cast<double>(seq.q_len) * seq.kv_len * p.num_heads;
        next_task = write_tasks(p, row, seq, num_kv_batches, next_task);
    }
    if (!status) status = reader.finish();
    if (!status && tasks != nullptr) work->num_tasks = static_cast<int32_t>((next_task - tasks) / num_task_fields);
    return status;
}

}  // namespace heed
