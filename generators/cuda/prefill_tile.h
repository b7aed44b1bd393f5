#pragma once
// The speed parameters of a CUDA prefill kernel: chosen in schedules/, used in the program.

namespace heed::cuda {

struct PrefillTile {
    bool tensor_cores = true;  // else FMA in f32: for f32 and for chips before sm_80; one buffer, nothing overlaps
    int warps = 4;
    int m_tiles = 2;        // tiles of 16 query rows that a warp owns
    int column_groups = 1;  // 2: two warps own the same rows, each all of their logits and half of their output
    int kv_block = 64;      // keys of a block, a multiple of 16
    int stages = 1;  // buffers of K and V each. 1: the next K arrives during the softmax and PV, V during QK; 2: both
                     // arrive during the whole step before
    bool q_in_registers = false;  // else Q's fragments are read from shared memory for each block of keys

    int rows() const { return 16 * m_tiles * warps / column_groups; }
    int threads() const { return 32 * warps; }
};

}  // namespace heed::cuda
