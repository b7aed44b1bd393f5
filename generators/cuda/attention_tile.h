#pragma once
// The speed parameters of a CUDA attention kernel: chosen in schedules/, used in the program.

namespace heed::cuda {

struct AttentionTile {
    int warps = 4;
    int m_tiles = 2;        // tiles of 16 query rows that a warp owns
    int column_groups = 1;  // 2: two warps own the same rows, each all of their logits and half of their output
    int key_groups = 1;     // more: as many warps own the same rows, each a part of every block of keys
    int kv_block = 64;      // keys of a block, a multiple of 16 * key_groups
    int stages = 1;  // buffers of K and V each. 1: the next K arrives during the softmax and PV, V during QK; more:
                     // this many blocks, less one, arrive while one is used
    int blocks = 1;  // that an SM's registers are to hold
    // Products of four warps (wgmma, sm_90 alone): a warp has 16 rows and all of their columns.
    bool warpgroups = false;
    bool q_in_registers = false;  // else Q's fragments are read from shared memory for each block of keys

    int row_groups() const { return warps / column_groups / key_groups; }
    int rows() const { return 16 * m_tiles * row_groups(); }
    int threads() const { return 32 * warps; }
    int keys_of_warp() const { return kv_block / key_groups; }
};

}  // namespace heed::cuda
