#pragma once
// Attention of a block of query rows on the tensor cores of sm_90, as device code: prefill of f16 and bf16.
// FlashAttention-2 (Dao, arXiv 2307.08691): each warp owns 16 query rows and all columns of their output; the keys and
// values that the block may see pass through shared memory in blocks of kv_block, copied while the tensor cores work on
// the one before; one accumulator, rescaled when a running maximum grows. Products are those of warpgroup.h.
//
// A thread holds of its warp's 16 rows two, g and g + 8 (g = lane / 4), so that a row's maximum and sum are those of
// four lanes.

#include "generators/attention/stages.h"
#include "generators/cuda/attention_tile.h"
#include "generators/cuda/device_code.h"
#include "generators/cuda/device_tensor.h"

namespace heed::cuda {

#define HEED_TENSOR_MEMBER(name, element, dims) DeviceTensor name;
struct ProgramInputs {
    HEED_ATTENTION(HEED_TENSOR_MEMBER, HEED_EXPR_MEMBER, HEED_TENSOR_MEMBER)
    Halide::Expr row_blocks, group_size;  // blocks of rows of max_q_len queries; query heads of a head of K and V
};

// Bytes of shared memory of a block.
int attention_shared_bytes(const AttentionConfig &config, const AttentionTile &tile);

// What thread `thread` of block `block` does; there are row_blocks * num_heads * batch blocks.
Halide::Internal::Stmt attention_program(const AttentionConfig &config, const AttentionTile &tile,
                                         const ProgramInputs &in, const Halide::Expr &block,
                                         const Halide::Expr &thread);

}  // namespace heed::cuda
