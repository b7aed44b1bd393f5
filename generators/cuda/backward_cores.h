#pragma once
// Attention's gradients on tensor cores (runtime/kernel.h: CUDA attention_backward_keys and _queries). The
// recomputation of FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 2), once along each side of the score matrix:
// seven products instead of five, for sums without atomics, whose bits depend on nothing but the problem.

#include <string>

#include "Halide.h"
#include "generators/common/element_type.h"
#include "generators/cuda/backward_inputs.h"

namespace heed::cuda {

// Speed parameters, chosen in schedules/.
struct BackwardTile {
    int head_dim;  // the largest that the kernel serves, of q and k and of v
    int warps = 4;
    int column_groups = 1;          // 2: two warps own the same rows, each all scores and half of the sums' columns
    int m_tiles = 1;                // tiles of 16 rows of its side that a warp owns
    int others = 32;                // rows of the other side of a step, a multiple of 16
    bool own_in_registers = false;  // else fragments of the own rows are read from shared memory in each step

    int rows() const { return 16 * m_tiles * warps / column_groups; }
    int threads() const { return 32 * warps; }
};

int backward_cores_shared_bytes(BackwardSide side, const BackwardTile &tile);

Halide::Module backward_cores_module(const std::string &name, ElementType type, BackwardSide side,
                                     const BackwardTile &tile, const Halide::Target &target);

}  // namespace heed::cuda
