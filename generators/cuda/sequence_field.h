#pragma once

namespace heed::cuda {

// Fields of the sequence table (runtime/kernel.h: SequenceField).
enum SequenceField {
    field_q_len,
    field_first_q,
    field_kv_len,
    field_first_key,
    field_visible_begin,
    field_visible_end,
    field_position_offset,
    num_sequence_fields = 8
};

}  // namespace heed::cuda
