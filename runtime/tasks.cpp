#include "runtime/tasks.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/kernel_call.h"
#include "runtime/key_parts.h"
#include "runtime/sequences.h"
#include "runtime/view.h"

namespace heed {
namespace {

// The task of a sequence's first row of its first head. num_kv_batches: indices of k and v along their batch axis.
void fill_task(const heed_problem &p, const Sequence &seq, int64_t num_kv_batches, int32_t task[num_task_fields]) {
    const VisibleRange visible = visible_range(p, seq);
    task[task_sequence] = seq.index;
    task[task_head] = 0;
    task[task_kv_head] = 0;
    task[task_first_row] = 0;
    task[task_num_blocks] = task[task_head_blocks] = 1;
    task[task_q_len] = seq.q_len;
    task[task_q_batch] = p.q_storage == HEED_Q_VARLEN ? 0 : seq.index;
    task[task_first_q] = seq.first_q;
    task[task_kv_len] = seq.kv_len;
    task[task_kv_batch] = p.kv_storage == HEED_KV_CONTIGUOUS && num_kv_batches > 1 ? seq.index : 0;
    task[task_first_key] = seq.first_key;
    task[task_visible_begin] = visible.begin;
    task[task_visible_end] = visible.end;
    task[task_position_offset] = visible.position_offset;
    task[task_first_block] = 0;
    task[task_swept] = 0;
}

// The blocks of keys that some query of the task's sequence sees, after those of the sequences before.
void write_key_blocks(int32_t kv_block, int32_t *task, int32_t *key_blocks, Workload *work) {
    const KeyRange seen = seen_keys(task);
    const int32_t begin = seen.begin / kv_block;
    const int32_t end = task[task_q_len] == 0 ? begin : std::max((seen.end + kv_block - 1) / kv_block, begin);
    task[task_first_block] = work->num_key_blocks - begin;
    for (int32_t block = begin; block < end; block++) {
        int32_t *const line = key_blocks + int64_t{work->num_key_blocks++} * num_key_block_fields;
        line[block_sequence] = task[task_sequence];
        line[block_first] = block * kv_block;
        line[block_kv_len] = task[task_kv_len];
        line[block_kv_batch] = task[task_kv_batch];
        line[block_first_key] = task[task_first_key];
    }
}

// Into how many parts the blocks of rows of a sequence fall: all heads' tasks of the last, largest ones come first. The
// fewer tasks a thread has, the smaller must be those that end the call. Tasks of a head that follow each other find
// its keys in the cache.
int32_t parts_of_rows(const heed_problem &p, const Kernel &kernel) {
    constexpr int64_t enough_tasks = 64;  // of a thread: the last ones hardly count
    if (kernel.phase == Phase::decode) return 1;
    const int64_t of_thread = std::max<int64_t>(max_tasks(p, kernel) / std::max(p.max_threads, 1), 1);
    return static_cast<int32_t>(enough_tasks / of_thread + 1);
}

class TaskWriter {
public:
    TaskWriter(const heed_problem &p, const ProblemViews &views, const Kernel &kernel, const TaskShape &shape,
               const TaskTables &tables, Workload *work)
        : p_(p), kernel_(kernel), shape_(shape), tables_(tables), work_(*work),
          num_kv_batches_(kernel_views(p, views).k.extent[0]), sweeps_(sweeps(kernel) && tables.swept_tasks != nullptr),
          masked_(p.has_mask || p.has_bias), heads_share_(heads_share_masks(p, views)), key_parts_(p, kernel),
          parts_(shape.whole_heads ? 1 : parts_of_rows(p, kernel)) {
        if (sweeps_ && !masked_) tables_.swept_tasks[work_.num_swept++] = 0;
    }

    void write(const Sequence &seq) {
        const bool decode = kernel_.phase == Phase::decode;
        const int32_t group_size = p_.num_heads / p_.num_kv_heads, num_rows = seq.q_len * (decode ? group_size : 1);
        const int32_t num_blocks = (num_rows + kernel_.row_block - 1) / kernel_.row_block;
        int32_t task[num_task_fields];
        fill_task(p_, seq, num_kv_batches_, task);
        if (kernel_.packed_bytes > 0) write_key_blocks(kernel_.kv_block, task, tables_.key_blocks, &work_);
        if (num_blocks == 0) return;
        if (key_parts_.serve(task)) return write_by_groups(task, num_blocks);
        const int32_t first_swept = work_.num_swept, parts = std::clamp(num_blocks, 1, parts_);
        if (sweeps_ && masked_) work_.num_swept += num_blocks * (heads_share_ ? 1 : p_.num_heads);
        for (int32_t part = parts - 1; part >= 0; part--) {
            const int64_t begin = int64_t{num_blocks} * part / parts, end = int64_t{num_blocks} * (part + 1) / parts;
            for (int32_t head = 0; head < p_.num_heads; head += decode ? shape_.heads * group_size : 1) {
                task[task_head] = head;
                task[task_kv_head] = head / group_size;
                for (int64_t n = begin; n < end; n += shape_.row_blocks) {
                    const auto block = static_cast<int32_t>(decode ? n : begin + end - 1 - n);
                    task[task_first_row] = block * kernel_.row_block;
                    task[task_head_blocks] = std::min(shape_.row_blocks, num_blocks - block);
                    task[task_num_blocks] = shape_.heads * task[task_head_blocks];
                    if (sweeps_ && masked_) {
                        task[task_swept] = first_swept + (heads_share_ ? 0 : head * num_blocks) + block;
                        tables_.swept_tasks[task[task_swept]] = work_.num_tasks;
                    }
                    append(task);
                }
            }
        }
    }

private:
    // Tasks that read the same keys follow each other, the largest ones first.
    void write_by_groups(int32_t task[num_task_fields], int32_t num_blocks) {
        const int32_t group_size = p_.num_heads / p_.num_kv_heads;
        for (int32_t group = 0; group < p_.num_kv_heads; group++) {
            for (int32_t block = num_blocks - 1; block >= 0; block--) {
                for (int32_t n = 0; n < group_size; n++) {
                    task[task_head] = group * group_size + n;
                    task[task_kv_head] = group;
                    task[task_first_row] = block * kernel_.row_block;
                    append(task);
                }
            }
        }
    }

    void append(int32_t task[num_task_fields]) {
        if (kernel_.kept_bytes > 0) {
            task[task_part_begin] = 0;
            task[task_part_end] = no_part_end;
        }
        std::copy(task, task + num_task_fields, tables_.tasks + int64_t{work_.num_tasks++} * num_task_fields);
    }

    const heed_problem &p_;
    const Kernel &kernel_;
    const TaskShape &shape_;
    const TaskTables &tables_;
    Workload &work_;
    const int64_t num_kv_batches_;
    const bool sweeps_, masked_, heads_share_;
    const KeyParts key_parts_;
    const int32_t parts_;
};

}  // namespace

KeyRange seen_keys(const int32_t task[num_task_fields]) {
    const int64_t last_end = int64_t{task[task_q_len]} - 1 + task[task_visible_end];
    return {std::max(task[task_visible_begin], 0),
            static_cast<int32_t>(std::clamp<int64_t>(last_end, 0, task[task_kv_len]))};
}

KeyRange keys_of_all(const int32_t task[num_task_fields], int64_t first_row, int64_t end_row) {
    const int64_t begin = end_row - 1 + task[task_visible_begin], end = first_row + task[task_visible_end],
                  kv_len = task[task_kv_len];
    return {static_cast<int32_t>(std::clamp<int64_t>(begin, 0, kv_len)),
            static_cast<int32_t>(std::clamp<int64_t>(end, 0, kv_len))};
}

bool heads_share_masks(const heed_problem &p, const ProblemViews &views) {
    return (!p.has_mask || views.mask.stride[1] == 0) && (!p.has_bias || views.bias.stride[1] == 0);
}

bool heads_are_inside(const ProblemViews &views) {
    return views.k.stride[2] < views.k.stride[1] && views.v.stride[2] < views.v.stride[1];
}

TaskShape task_shape(const heed_problem &p, const ProblemViews &views, const Kernel &kernel, int32_t num_splits) {
    const int64_t rows = int64_t{p.max_q_len} * (p.num_heads / p.num_kv_heads), block = kernel.row_block;
    if (kernel.task_blocks == 1 || rows == 0 || rows > max_int32 - block) return {};
    return choose_task_shape({kernel.task_blocks, p.num_kv_heads, static_cast<int32_t>((rows + block - 1) / block),
                              heads_are_inside(views), int64_t{p.batch} * num_splits, p.max_threads});
}

int64_t max_tasks(const heed_problem &p, const Kernel &kernel, const TaskShape &shape) {
    const bool decode = kernel.phase == Phase::decode;
    const int64_t group = decode ? p.num_heads / p.num_kv_heads : 1,
                  heads = decode ? p.num_kv_heads / shape.heads : p.num_heads;
    const int64_t rows = p.max_q_len * group, task_rows = int64_t{kernel.row_block} * shape.row_blocks;
    if (rows > max_int32 - task_rows) return -1;
    int64_t blocks = (rows + task_rows - 1) / task_rows * p.batch;
    if (p.q_storage == HEED_Q_VARLEN) {
        // Whole blocks, and at most one that is not full per sequence.
        blocks = std::min(blocks, int64_t{p.total_q} * group / task_rows + p.batch);
    }
    const Size tasks = Size{blocks} * heads;
    return tasks.at_most(max_int32 / num_task_fields) ? tasks.value : -1;
}

int64_t max_key_blocks(const heed_problem &p, const Kernel &kernel) {
    if (kernel.packed_bytes == 0) return 0;
    const auto blocks_of = [&](int64_t keys) { return (keys + kernel.kv_block - 1) / kernel.kv_block; };
    int64_t blocks = blocks_of(p.max_kv_len) * p.batch;
    // Whole blocks, and at most one that is not full per sequence.
    if (p.kv_storage == HEED_KV_VARLEN) blocks = std::min(blocks, int64_t{p.total_kv} / kernel.kv_block + p.batch);
    return blocks <= max_int32 / num_key_block_fields ? blocks : -1;
}

int64_t max_swept_tasks(const heed_problem &p, const ProblemViews &views, const Kernel &kernel) {
    if (!sweeps(kernel)) return 0;
    if (!p.has_mask && !p.has_bias) return 1;
    const int64_t tasks = max_tasks(p, kernel);
    return heads_share_masks(p, views) ? tasks / p.num_heads : tasks;
}

heed_status resolve_tasks(const heed_problem &p, const ProblemViews &views, const Kernel &kernel, const heed_args &args,
                          const TaskTables &tables, Workload *work, const TaskShape &shape) {
    const bool only_checks = tables.tasks == nullptr;
    SequenceReader reader(p, args);
    heed_status status = reader.start();
    std::optional<TaskWriter> writer;
    if (!only_checks) writer.emplace(p, views, kernel, shape, tables, work);
    for (int32_t b = 0; !status && b < p.batch; b++) {
        Sequence seq;
        status = reader.next(&seq);
        if (status || only_checks) continue;
        work->pairs += static_cast<double>(seq.q_len) * seq.kv_len * p.num_heads;
        if (seq.q_len > 0) work->keys += static_cast<double>(seq.kv_len) * p.num_kv_heads;
        writer->write(seq);
    }
    return status ? status : reader.finish();
}

}  // namespace heed
