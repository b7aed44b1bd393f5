// RoPE on blocks of rows, for heed_rope and for keys on their way into a cache.
#pragma once

#include "runtime/ops/rows.h"
#include "runtime/ranges.h"

namespace heed {

// Validated tables and the kernel that serves them.
struct Rotation {
    const OpKernel *kernel = nullptr;
    heed_dtype dtype;
    int32_t head_dim, num_pairs;  // num_pairs 0: rows are copied
    bool interleaved;
    const float *cos, *sin;  // [table_rows, num_pairs]
    int64_t table_rows;
    const int32_t *positions;  // [batch, len] or NULL
    float direction = 1;       // -1: rotates back
};

// Fields of the tables, without pointers. `name` is the struct's place in the arguments.
heed_status check_tables(const char *name, const heed_rope_tables &tables, int32_t head_dim);

// The rotation of rows of `dtype` by tables of `table_rows` rows; adds cos, sin and positions ([batch, len]) to
// `ranges`. The kernel as Backend::find_rotation() finds it.
heed_status make_rotation(const char *name, heed_device device, const heed_rope_tables &tables, heed_dtype dtype,
                          int32_t head_dim, int64_t table_rows, int64_t num_positions, MemoryRanges *ranges,
                          Rotation *rotation);

// Table rows of the tokens of a block: positions[t], or first + t when positions is NULL.
struct TablePlace {
    const int32_t *positions;
    int64_t first;
};

// Rotates the first 2 * num_pairs elements of each row and copies the rest; `out` may be `x` itself.
int rotate_rows(const Rotation &rotation, const Rows &x, const Rows &out, const TablePlace &place, int32_t num_tokens,
                int32_t num_heads, char (&message)[512]);

}  // namespace heed
