#include "schedules/attention_cuda_tiles.h"

namespace heed {

// What bounds a step on sm_90, counted, not measured, in cycles of an SM as in attention_prefill_cuda.cpp.
//
//                                     mma of a warp  shared memory of a block   cycles: mma (62 %), shared memory
//   keys, d64, 64 queries, k, v held  128            4 * 64 * 512 B + 16 KB     806, 1152
//   keys, d128, 32 queries            128            4 * 80 * 512 B + 16 KB     806, 1408
//   queries, d64, 64 keys, held        96            4 * 48 * 512 B + 16 KB     605, 896
//   queries, d128, 32 keys, held       96            4 * 48 * 512 B + 16 KB     605, 896
//
// A warp of 16 rows reads each fragment of the other side for them alone: 32 would need 256 accumulators for dk and dv
// at d128. Both sides together do five useful products of 64 x 32 x 128 in 2304 cycles, at most 264 TFLOP/s of an H100.
// 255 registers leave room for nothing more; 99 KB of shared memory are all that sm_86 has.
cuda::BackwardTile backward_tile_cuda(BackwardSide side, int head_dim) {
    cuda::BackwardTile tile;
    tile.head_dim = head_dim;
    if (head_dim <= 64) {
        tile.others = 64;
        tile.own_in_registers = true;
    } else if (head_dim > 128) {
        tile.column_groups = 2;
        tile.others = 16;
    } else {
        tile.own_in_registers = side == backward_queries;
    }
    return tile;
}

}  // namespace heed
