#pragma once
// Attention of a block of query rows on tensor cores, as device code. FlashAttention-2 (Dao, arXiv 2307.08691): each
// warp owns rows of 16 * m_tiles queries and all columns of their output; the keys and values that the block may see
// pass through shared memory in blocks of kv_block, copied while the tensor cores work on the one before; one
// accumulator, rescaled when a running maximum grows.
//
// A thread holds of each tile of 16 rows two rows, g and g + 8 (g = lane / 4), so that a row's maximum and sum are
// those of four lanes.

#include "../attention_config.h"
#include "device_code.h"
#include "device_tensor.h"
#include "prefill_tile.h"

namespace heed::cuda {

struct PrefillInputs {
    DeviceTensor q, k, v, mask, bias, bias_16, sink, alibi_slopes, sequences, out, lse;
    Halide::Expr max_q_len, max_kv_len, scale, softcap, mask_form, bias_form, alibi_symmetric;
    Halide::Expr uniform, visible_begin, visible_end, position_offset;
    Halide::Expr row_blocks, group_size;  // blocks of rows of max_q_len queries; query heads of a head of K and V
};

// Bytes of shared memory of a block.
int prefill_shared_bytes(const AttentionConfig &config, const PrefillTile &tile);

// What thread `thread` of block `block` does; there are row_blocks * num_heads * batch blocks.
Halide::Internal::Stmt prefill_program(const AttentionConfig &config, const PrefillTile &tile, const PrefillInputs &in,
                                       const Halide::Expr &block, const Halide::Expr &thread);

}  // namespace heed::cuda
