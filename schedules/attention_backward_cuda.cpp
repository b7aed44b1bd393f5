#include "attention_cuda_tiles.h"

namespace heed {

// What bounds a step of keys on sm_90, counted, not measured, in cycles of an SM as in attention_prefill_cuda.cpp.
// Fragments of the other side serve 16 rows only: 32 would need twice the 64 + 64 (d128) accumulators of dk and dv,
// which no 255 registers hold.
//
//                               mma  shared memory of a block       cycles: mma (62 % of peak), shared memory
//   keys, d64, 64 queries       256  4 * 176 * 512 B + 16 KB        1612, 2944
//   keys, d128, 32 queries      256  4 * 160 * 512 B + 16 KB        1612, 2688
//
// Five of seven products count: 0.71 of what the tensor cores do. 99 KB of shared memory are all that sm_86 has.
cuda::BackwardTile backward_tile_cuda(int head_dim) {
    cuda::BackwardTile tile;
    tile.head_dim = head_dim;
    if (head_dim <= 64) {
        tile.others = 64;
    } else if (head_dim > 128) {
        tile.column_groups = 2;
        tile.others = 16;
    }
    return tile;
}

}  // namespace heed
