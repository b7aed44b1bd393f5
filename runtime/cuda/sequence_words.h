// A line of SequenceField as parameters of a launch.
#pragma once

#include "kernel.h"
#include "sequences.h"

namespace heed {

constexpr int words_per_sequence = num_sequence_fields / 2;

// Two fields a word, low half first.
inline void pack_sequence(const heed_problem &p, const Sequence &seq, uint64_t *line) {
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

}  // namespace heed
