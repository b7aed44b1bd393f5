#pragma once
// Attention of a block of query rows on tensor cores, as device code. FlashAttention-2 (Dao, arXiv 2307.08691): each
// warp owns rows of 16 * m_tiles queries and all columns of their output; the keys and values that the block may see
// pass through shared memory in blocks of kv_block, copied while the tensor cores work on the one before; one
// accumulator, rescaled when a running maximum grows.
//
// Decode (has_gqa): a row is a query head of a group at a position, row = position * group_size + head of the
// group, so that a block of 16 rows reads a head of K and V once for all of them. The keys are shared out twice: over
// splits, blocks of the grid that leave states for merge_splits.h, and over the warps of a block (key_groups).
//
// A thread holds of each tile of 16 rows two rows, g and g + 8 (g = lane / 4), so that a row's maximum and sum are
// those of four lanes.

#include "generators/attention/stages.h"
#include "generators/cuda/attention_tile.h"
#include "generators/cuda/device_code.h"
#include "generators/cuda/device_tensor.h"

namespace heed::cuda {

#define HEED_TENSOR_MEMBER(name, element, dims) DeviceTensor name;
struct ProgramInputs {
    HEED_ATTENTION(HEED_TENSOR_MEMBER, HEED_EXPR_MEMBER, HEED_TENSOR_MEMBER)
    ScoreBuffers score_buffers;
    Halide::Expr row_blocks, group_size;  // blocks of rows of max_q_len queries; query heads of a head of K and V
};

// Bytes of shared memory of a block.
int attention_shared_bytes(const AttentionConfig &config, const AttentionTile &tile);

// What thread `thread` of block `block` does; there are row_blocks * num_heads * batch blocks, in decode row_blocks *
// num_kv_heads * num_splits * batch.
Halide::Internal::Stmt attention_program(const AttentionConfig &config, const AttentionTile &tile,
                                         const ProgramInputs &in, const Halide::Expr &block,
                                         const Halide::Expr &thread);

}  // namespace heed::cuda
