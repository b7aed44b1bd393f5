#include "runtime/cuda/sequence_table.h"

#include <algorithm>
#include <iterator>

#include "runtime/read_once.h"
#include "runtime/workspace.h"

namespace heed {
namespace {

using cuda::Launches;

constexpr int words_per_sequence = num_sequence_fields / 2;

// A line as parameters of a launch: two fields a word, low half first.
void pack_sequence(const heed_problem &p, const Sequence &seq, uint64_t *line) {
    const VisibleRange visible = visible_range(p, seq);
    int32_t fields[num_sequence_fields] = {};
    fields[sequence_q_len] = seq.q_len;
    fields[sequence_first_q] = seq.first_q;
    fields[sequence_kv_len] = seq.kv_len;
    fields[sequence_first_key] = seq.first_key;
    fields[sequence_visible_begin] = visible.begin;
    fields[sequence_visible_end] = visible.end;
    fields[sequence_position_offset] = visible.position_offset;
    for (int i = 0; i < num_sequence_fields; i += 2) {
        line[i / 2] = static_cast<uint32_t>(fields[i]) | uint64_t{static_cast<uint32_t>(fields[i + 1])} << 32;
    }
}

// Metadata on the host. `launches` NULL only checks it.
class HostTable {
public:
    HostTable(const heed_plan &plan, const heed_args &args, Launches *launches)
        : plan_(plan), args_(args), reader_(plan.problem, args), launches_(launches),
          next_(static_cast<char *>(args.workspace) + plan.workspace.tasks) {}

    heed_status write() {
        heed_status status = reader_.start();
        for (int32_t b = 0; !status && b < plan_.problem.batch; b++) {
            Sequence sequence;
            status = reader_.next(&sequence);
            if (status || launches_ == nullptr) continue;
            if (copies_pages(plan_.problem)) status = put_pages(sequence);
            if (status) continue;
            pack_sequence(plan_.problem, sequence, words_.word + int64_t{num_lines_} * words_per_sequence);
            num_lines_++;
            if (num_lines_ == sequences_per_launch || b == plan_.problem.batch - 1) status = flush();
        }
        return status ? status : reader_.finish();
    }

private:
    // Words after the last line are not written.
    heed_status flush() {
        const int32_t words = num_lines_ * num_sequence_fields;
        char *const to = next_;
        next_ += int64_t{words} * int64_t{sizeof(int32_t)};
        num_lines_ = 0;
        return put(words_, words, to);
    }

    // The pages that are in use, read again: the kernel clamps them.
    heed_status put_pages(const Sequence &sequence) {
        const heed_problem &p = plan_.problem;
        const int32_t *const ids = args_.page_table + int64_t{sequence.index} * p.max_pages_per_seq;
        char *const to = static_cast<char *>(args_.workspace) + plan_.workspace.pages +
                         int64_t{sequence.index} * copied_pages(p) * int64_t{sizeof(int32_t)};
        const int64_t pages = (int64_t{sequence.kv_len} + p.page_size - 1) / p.page_size;
        heed_status status = HEED_OK;
        for (int64_t first = 0; !status && first < pages; first += num_metadata_words) {
            const int64_t count = std::min<int64_t>(pages - first, num_metadata_words);
            MetadataWords words;
            for (int64_t i = 0; i < count; i++) {
                words.word[i / 2] |= uint64_t{static_cast<uint32_t>(read_once(ids[first + i]))} << (i % 2 * 32);
            }
            status = put(words, static_cast<int32_t>((count + 1) / 2 * 2), to + first * int64_t{sizeof(int32_t)});
        }
        return status;
    }

    heed_status put(const MetadataWords &words, int32_t count, char *to) {
        cuda::WriteMetadataArguments arguments;
        arguments.word = words;
        arguments.num_words = count;
        arguments.to = cuda::address_of(to);
        arguments.named = cuda::named(to);
        return cuda::launch_op(*plan_.sequence_kernel, arguments, *launches_);
    }

    const heed_plan &plan_;
    const heed_args &args_;
    SequenceReader reader_;
    Launches *const launches_;
    char *next_;  // on the device
    MetadataWords words_;
    int32_t num_lines_ = 0;
};

// Metadata on the device.
heed_status launch_sequences(const heed_plan &plan, const heed_args &args, Launches *launches) {
    const heed_problem &p = plan.problem;
    const auto array = [](const int32_t *data, bool used) { return used ? cuda::address_of(data) : 0; };
    const KernelBuffer table = sequence_table(plan, args);
    cuda::SequencesArguments arguments;
    arguments.batch = p.batch;
    arguments.max_q_len = p.max_q_len;
    arguments.max_kv_len = p.max_kv_len;
    if (p.kv_storage == HEED_KV_PAGED) {
        const int64_t held = int64_t{p.max_pages_per_seq} * p.page_size;
        arguments.max_kv_len = static_cast<int32_t>(std::min(int64_t{p.max_kv_len}, held));
    }
    arguments.total_q = p.total_q;
    arguments.total_kv = p.total_kv;
    arguments.position = p.position;
    arguments.causal = p.causal;
    arguments.window_left = p.window_left;
    arguments.window_right = p.window_right;
    arguments.cu_seqlens_q = array(args.cu_seqlens_q, p.q_storage == HEED_Q_VARLEN);
    arguments.cu_seqlens_kv = array(args.cu_seqlens_kv, p.kv_storage == HEED_KV_VARLEN);
    arguments.kv_lens = array(args.kv_lens, p.has_kv_lens);
    arguments.q_offsets = array(args.q_offsets, p.position == HEED_EXPLICIT);
    arguments.status = cuda::address_of(args.device_status);
    arguments.table = cuda::address_of(table.data);
    arguments.named = cuda::named(table.data);
    return cuda::launch_op(*plan.sequence_kernel, arguments, *launches);
}

}  // namespace

KernelBuffer sequence_table(const heed_plan &plan, const heed_args &args) {
    char *const table = static_cast<char *>(args.workspace) + plan.workspace.tasks;
    return packed_buffer(table, HEED_I32, {num_sequence_fields, plan.problem.batch});
}

heed_status put_sequences(const heed_plan &plan, const heed_args &args, Launches *launches) {
    if (plan.sequence_kernel == nullptr) return HEED_OK;
    return plan.problem.metadata_on_device ? launch_sequences(plan, args, launches)
                                           : HostTable(plan, args, launches).write();
}

heed_status check_sequences(const heed_plan &plan, const heed_args &args) {
    return plan.problem.metadata_on_device ? HEED_OK : HostTable(plan, args, nullptr).write();
}

}  // namespace heed
