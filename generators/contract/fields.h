#pragma once
// Numbers that generators and the runtime share.

#include <cstdint>

namespace heed {

constexpr int32_t max_head_dim = 640, max_cuda_head_dim = 256;

// Rows of keys and values that a kernel of any head dim packs are padded to a multiple of so many elements.
constexpr int32_t packed_unit = 32;

// In pages so many blocks of a head's rows read whole keys together: other kernels look up each key for each of them.
constexpr int32_t whole_key_blocks = 2;

// What a kernel can serve beyond the plain problem, with its bit; it serves problems without these too. gqa: a decode
// kernel that works on several rows (heads of a group, positions) at once; it serves any group, and so does one without
// it.
#define HEED_FEATURES(X) X(bias, 0) X(mask, 1) X(gqa, 2) X(softcap, 3) X(alibi, 4) X(dropout, 5)

enum Feature : uint32_t {
#define HEED_FEATURE_BIT(name, bit) feature_##name = 1u << bit,
    HEED_FEATURES(HEED_FEATURE_BIT)
#undef HEED_FEATURE_BIT
};

// Any non-zero element of a mask is true.
enum MaskForm : int32_t { no_mask, mask_true_attends, mask_true_hides };
enum BiasForm : int32_t { no_bias, bias_of_f32, bias_of_dtype };

// heed_probs_mode.
enum ProbsMode : int32_t { raw_scores, soft_capped_scores, masked_scores, probabilities };

// The columns of the task table: a block of rows of one head, in decode blocks of rows of one or more heads. Row i of a
// sequence sees the keys j in [max(0, i + visible_begin), min(kv_len, i + visible_end)) and is at position i +
// position_offset; visible_end is at least -q_len.
enum TaskField {
    task_sequence,
    task_head,  // prefill: query head; decode: first query head of the group
    task_kv_head,
    task_first_row,  // prefill: query position in the sequence; decode: position * group_size + head of the group
    task_q_len,
    task_q_batch,  // batch index and first token of the sequence in q and out
    task_first_q,
    task_kv_len,
    task_kv_batch,  // strided storage: page and first slot of the sequence
    task_first_key,
    task_visible_begin,
    task_visible_end,
    task_position_offset,
    task_first_block,  // kernels that pack: key j of the sequence is in the block task_first_block + j / kv_block
    task_swept,        // kernels that sweep over mask and bias: the line of swept_tasks for the rows of the task
    task_num_blocks,   // decode: blocks of rows of the task; those of a head of keys and values, from task_first_row
    task_head_blocks,  // on, are this many, those of the next head follow
    num_task_fields,

    // Prefill kernels that take keys in parts: the task computes the blocks of keys in [task_part_begin,
    // task_part_end), multiples of kv_block. The first part, from 0 on, begins the rows, with the keys that some of
    // them do not see; the last one, up to no_part_end, writes them.
    task_part_begin = task_num_blocks,
    task_part_end = task_head_blocks
};

constexpr int32_t no_part_end = INT32_MAX;

// The columns of the table of blocks of keys that a kernel packs: kv_block keys of a sequence, from the position
// block_first on, which is a multiple of kv_block below kv_len. The others as in TaskField.
enum KeyBlockField { block_sequence, block_first, block_kv_len, block_kv_batch, block_first_key, num_key_block_fields };

// Words that a sweep over mask and bias leaves of a line of swept_tasks, before a byte for each block of keys.
constexpr int num_sweep_results = 7;

// The columns of CUDA's table of sequences, with the meaning that TaskField gives them.
enum SequenceField {
    sequence_q_len,
    sequence_first_q,
    sequence_kv_len,
    sequence_first_key,
    sequence_visible_begin,
    sequence_visible_end,
    sequence_position_offset,
    sequence_padding,  // 8 fields: one 32-byte sector
    num_sequence_fields
};

// How much of the logits' path a tile of gradients takes: plain tiles see all keys and change no logit; positioned ones
// change none, but positions say who sees what.
enum BackwardForm : int32_t { backward_plain, backward_positioned, backward_scored, backward_dropped };

// Gradients are sums along one side of the score matrix: of keys (dk and dv), over the queries that see them, and of
// queries (dq), over the keys that they see.
enum BackwardSide : int32_t { backward_keys, backward_queries };

constexpr int backward_chunk = 32;     // elements of a chunk of a row of gradients' operands, and the unit of columns
constexpr int backward_row_unit = 12;  // a tile of gradients is written in multiples of so many rows
constexpr float backward_no_key = 1e30f;  // as lse of a row: it sees nothing, every weight is 0
constexpr int backward_stat_bytes = 8;    // of a row of `stats`: lse in log2, then delta = dout . out

constexpr int sum_columns = 64;  // that column_sums and layer_norm_sums have at most

constexpr int num_metadata_words = 256;  // of 32 bits
constexpr int num_move_segments = 32, move_segment_words = 4;
constexpr int max_merge_states = 64, merge_state_words = 2;

}  // namespace heed
