// Sizes of the blocks that dense layers are multiplied in on the CPU.
#pragma once

#include <algorithm>
#include <limits>

#include "runtime/ops/linear.h"

namespace heed {

// Rows of x whose tiles are in memory at once, as far as they fit: W is read once for all of them.
inline constexpr int32_t most_rows = 1536;
inline constexpr int64_t tiles_bytes = 6 << 20;

// W that is as small stays in half of an L2 cache: a task packs a few tiles of x and multiplies them with all of W
// while they are in the L1 cache. A task of more rows packs its own tiles where it takes all steps at once.
inline constexpr int64_t small_weights_bytes = 512 << 10;
inline constexpr int64_t small_task_tiles = 8;

// Other tasks of more than one tile take the steps of k in blocks, the sums so far in scratch of its thread. Within 1
// MiB of L2: 192 rows of x and 512 columns of sums of such a block take 384 KiB each, W's panel, and the next one which
// is asked for meanwhile, 64 KiB each.
inline constexpr int64_t k_block_bytes = 2048;  // of a row of x
inline constexpr int64_t block_x_bytes = 384 << 10, block_sums_bytes = 384 << 10;
inline constexpr int64_t most_panels = 16;
inline constexpr int64_t converted_panels = 4;  // at once

// Matrix tiles (AMX) of up to 1024 elements take all steps at once: their sums then never leave the tile registers.
// 2048 x 768 x 2304 on a Xeon with AMX, 2 threads: 0.83 of the time in two blocks; 2048 x 1024 x 3072 0.91. 512 KiB of
// x in L2.
inline constexpr int32_t whole_matrix_steps = 512;
inline constexpr int64_t whole_matrix_x_bytes = 512 << 10;

inline bool takes_matrix_tiles_whole(const heed_linear_weights &w) {
    return w.tiles[0]->target == KernelTarget(Isa::amx) && w.k_steps <= whole_matrix_steps;
}

// Tasks that pack their own tiles take up to 3072 elements at once: of a panel of W 32 KiB stay in L1 (see
// schedule_matrix_tiles), and no sums pass through L2. Time of that in blocks, 2 threads: 2048 x 1536 x 1536 0.79, 2048
// x 2048 x 2048 0.89, 2048 x 3072 x 3072 0.8, 2048 x 4096 x 4096 1.04. Where rows are few, tasks share the tiles of x,
// and a panel would serve too few of them: 512 x 2048 x 2048 1.1.
inline constexpr int32_t own_matrix_steps = 1536;
inline constexpr int64_t own_matrix_x_bytes = 768 << 10;

inline bool own_tiles_take_all_steps(const heed_linear_weights &w) {
    return w.tiles[0]->target == KernelTarget(Isa::amx) && w.k_steps <= own_matrix_steps;
}

inline bool is_small(int64_t weight_bytes) { return weight_bytes <= small_weights_bytes; }

inline int64_t bytes_of(const heed_linear_weights &w, int64_t panels) {
    return panels * w.k_steps * w.k_step * w.columns * dtype_bytes(w.dtype);
}

// Blocks of steps that are multiplied one after the other, equal ones except for the last.
struct KBlocks {
    int32_t count, steps;  // steps: of a block, whole linear_step_blocks

    explicit KBlocks(const heed_linear_weights &w) {
        const int32_t in_l1 = narrow(k_block_bytes / (int64_t{4} * w.k_step)), all = w.k_steps / linear_step_block;
        const int32_t most = takes_matrix_tiles_whole(w) ? whole_matrix_steps : in_l1;
        count = (w.k_steps + most - 1) / most;
        const int32_t each = (all + count - 1) / count;
        count = (all + each - 1) / each;
        steps = each * linear_step_block;
    }
};

// Elements of W that are converted for each tile that reads them, rather than once for all tiles of a task: that costs
// 4 operations of the units that multiply for the 24 products of a step of a full tile.
inline bool converts(const heed_linear_weights &w) { return w.k_step == 1 && w.dtype != HEED_F32; }

inline bool sums_in_blocks(const heed_linear_weights &w) {
    return w.sums != nullptr && (converts(w) || KBlocks(w).count > 1);
}

// Bytes of x of a tile.
inline int64_t tile_bytes(const heed_linear_weights &w, int64_t steps) { return int64_t{4} * w.tiles[0]->rows * steps; }

// Tiles of a task.
inline int64_t block_tiles(const heed_linear_weights &w) {
    constexpr int64_t most = 32;
    const int64_t bytes = takes_matrix_tiles_whole(w) ? whole_matrix_x_bytes : block_x_bytes;
    return std::clamp<int64_t>(bytes / tile_bytes(w, KBlocks(w).steps), 1, most);
}

// Tiles that a task packs for itself, at most; 0: x is packed for all tasks before.
inline int64_t own_tiles(const heed_linear_weights &w, int64_t weight_bytes) {
    const bool one_block = KBlocks(w).count == 1;
    const int64_t in_l2 = own_matrix_x_bytes / tile_bytes(w, w.k_steps);
    const int64_t most = one_block ? block_tiles(w) : own_tiles_take_all_steps(w) ? in_l2 : 0;
    if (!is_small(weight_bytes)) return most;
    return most > 0 ? std::min(small_task_tiles, most) : small_task_tiles;
}

// Scratch of a thread, in floats, where the call has num_rows. `tiles`, its own, take the place of those for all tasks,
// which are not there then; floats(): all else.
struct ThreadScratch {
    int64_t sums = 0, wide = 0, tiles = 0;

    ThreadScratch(const heed_linear_weights &w, int64_t num_rows) {
        const int64_t rows = w.tiles[0]->rows;
        // A call has these weights alone or more.
        const int64_t most =
            std::max(own_tiles(w, bytes_of(w, w.num_panels)), own_tiles(w, std::numeric_limits<int64_t>::max()));
        tiles = std::min(most, (num_rows + rows - 1) / rows) * rows * w.k_steps;
        num_rows = std::min(num_rows, block_tiles(w) * rows);
        if (!sums_in_blocks(w) || num_rows <= rows) return;
        const int64_t panels = std::min(most_panels, int64_t{w.num_panels} + 1);
        sums = std::min(block_sums_bytes / 4, (num_rows + rows) * panels * w.columns);
        if (converts(w)) wide = converted_panels * KBlocks(w).steps * w.columns;
    }
    int64_t floats() const { return round_up(sums + wide, linear_step_block); }
};

// The most rows that a tile has.
inline int32_t most_tile_rows(const heed_linear_weights &w) {
    return std::max(w.tiles[0]->rows, w.tiles[w.num_tiles > 1 ? 1 : 0]->rows);
}

// Whole tiles, or num_rows.
inline int32_t block_rows(const heed_linear_weights &w, int64_t num_rows) {
    const int64_t tile = w.tiles[0]->rows,
                  fitting = std::min<int64_t>(tiles_bytes / (int64_t{4} * w.k_steps), most_rows);
    return static_cast<int32_t>(std::min(num_rows, std::max<int64_t>(fitting / tile, 1) * tile));
}

// Floats of the tiles of a block of rows.
inline int64_t shared_floats(const heed_linear_weights &w, int64_t num_rows) {
    return (int64_t{block_rows(w, num_rows)} + most_tile_rows(w)) * w.k_steps;
}

// The rows for which tiles of a kind read a panel once.
inline int64_t rows_at_once(const heed_linear_weights &w, int32_t tile) {
    const int32_t rows = w.tiles[tile]->rows;
    const bool several = w.k_step == 1 && takes_tiles_at_once(rows, most_tile_rows(w));
    return int64_t{rows} * (several ? linear_tiles_at_once : 1);
}

// Whether tiles of the first kind multiply the rows with one block of steps after another.
inline bool in_blocks(const heed_linear_weights &w, int64_t num_rows) {
    return sums_in_blocks(w) && num_rows > int64_t{most_tile_rows(w)} * (converts(w) ? 3 : 1);
}

// The tile for a number of rows. Tiles of the first kind read a panel once where they take the steps in blocks; two
// panels at once need 72 instructions for 48 products instead of 79. Tiles of another kind read the panel once for
// rows_at_once(), and again for further rows. That costs more where the panel is too large to stay in an L2 cache
// beside the next one. Measured (Xeon, family 6 model 85, 2 threads, f32, 4096 x 4096): 16 rows as 2 tiles of 8 take
// 0.85 of the time of 3 tiles of 6 and 0.77 of that of 2 of 12; 24 rows as 4 of 6 0.98 of 2 of 12; 40 rows as 7 of 6
// 0.86 of 4 of 12, which take 0.78 of 5 of 8.
inline int32_t choose_tile(const heed_linear_weights &w, int32_t num_rows) {
    constexpr int64_t large_panel_bytes = 256 << 10;
    // A row of sums, of two panels at once; a panel that is read, in blocks.
    constexpr int64_t row_cost = 10, two_panel_row_cost = 9, reading_cost = 20, blocks_reading_cost = 40;
    const bool panel_is_large = sums_in_blocks(w) && !converts(w) && bytes_of(w, 1) > large_panel_bytes;
    const auto cost = [&](int32_t i) {
        const int64_t rows = w.tiles[i]->rows, at_once = rows_at_once(w, i);
        const bool two_panels = panels_at_once(*w.tiles[i]) == 2;
        const int64_t reading =
            i == 0 && in_blocks(w, num_rows) ? blocks_reading_cost : (num_rows + at_once - 1) / at_once * reading_cost;
        return round_up(num_rows, rows) * (two_panels ? two_panel_row_cost : row_cost) + reading;
    };
    int32_t best = 0;
    for (int32_t i = 1; i < w.num_tiles; i++) {
        const bool may_take = num_rows <= rows_at_once(w, i) || !panel_is_large;
        if (may_take && cost(i) < cost(best)) best = i;
    }
    return best;
}

}  // namespace heed
