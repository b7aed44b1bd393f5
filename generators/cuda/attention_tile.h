#pragma once
// The speed parameters of a CUDA attention kernel with products of warpgroups: chosen in schedules/, used in the
// program.

namespace heed::cuda {

struct AttentionTile {
    int warps = 4;      // a multiple of 4; a warp has 16 query rows and all columns of their logits and output
    int kv_block = 64;  // keys of a block, a multiple of 16
    int blocks = 1;     // that an SM's registers are to hold

    int rows() const { return 16 * warps; }
    int threads() const { return 32 * warps; }
};

}  // namespace heed::cuda
