// From the caller's metadata on the host to what each sequence is.
#pragma once

#include "runtime/kernel.h"

namespace heed {

// Where a sequence is and what its queries see.
struct Sequence {
    int32_t index;
    int32_t q_len, first_q, kv_len, first_key;
    int64_t q_offset;
};

// Causal, window and position folded into the range that query i sees, [max(0, i + begin), min(kv_len, i + end)), and
// its position, i + position_offset.
struct VisibleRange {
    int32_t begin, end, position_offset;
};
VisibleRange visible_range(const heed_problem &problem, const Sequence &sequence);

// Reads the metadata of one call in one pass, each value once, and checks it: lengths, prefix sums, offsets, active
// page ids. The caller's memory may change meanwhile: what comes out is inside the plan's limits all the same.
class SequenceReader {
public:
    SequenceReader(const heed_problem &problem, const heed_args &args);

    // INVALID_ARGUMENT for wrong values.
    heed_status start() const;
    heed_status next(Sequence *sequence);  // batch times
    heed_status finish() const;

private:
    // Walks prefix sums: segment after segment, inside [0, total) whatever the memory holds.
    struct Segments {
        const char *name, *longest_name;
        const int32_t *sums;
        int32_t longest, total;
        int32_t end = 0;

        heed_status start() const;
        heed_status next(int32_t b, int32_t *begin, int32_t *length);
        heed_status finish(int32_t batch) const;
    };
    heed_status read_lengths(Sequence *sequence) const;

    const heed_problem &problem_;
    const heed_args &args_;
    Segments queries_, keys_;
    int32_t index_ = 0;
};

// Every sequence has max_q_len queries and max_kv_len keys, and execute reads no metadata.
bool is_uniform(const heed_problem &problem);

// Sequence 0 of a uniform problem; the others differ in their index only.
Sequence uniform_sequence(const heed_problem &problem);

// CUDA: whether execute takes the page table to the device.
bool copies_pages(const heed_problem &problem);

// CUDA: sequences that one launch of write_metadata takes to the device, and launches for all of the problem.
constexpr int32_t sequences_per_launch = num_metadata_words / num_sequence_fields;
int32_t num_host_launches(const heed_problem &problem);

}  // namespace heed
