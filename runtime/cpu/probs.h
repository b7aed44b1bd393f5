// A call of heed_attention_probs on the CPU, and its keys.
#pragma once

#include <algorithm>
#include <atomic>

#include "runtime/kernel_arguments.h"
#include "runtime/ops/heap_array.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/ops/probs_call.h"
#include "runtime/tasks.h"

namespace heed {

inline constexpr const char *probs_name = "heed_attention_probs";
inline constexpr int32_t most_tile_stride = 1 << 25;  // from a row of a tile of whole_tiles to the next
inline constexpr int64_t chunk_panels = 16;           // that few queries pack at a time

struct HostProbs : ProbsCall {
    const OpKernel *kernel = nullptr, *products = nullptr, *packs_queries = nullptr;
    const OpKernel *whole_tiles = nullptr;  // of products and value_products where both are such; NULL: not there
    // As floats, or as pairs of bf16 where both keys and results are such; NULL: not there.
    const OpKernel *value_products = nullptr, *packs_weights = nullptr;
    InPlaceKernels in_place = {};          // of value_products
    HeapArray<int32_t> tasks = {};         // one per head of each sequence that has queries
    HeapArray<int64_t> task_of_head = {};  // [batch][num_heads]: index into tasks, -1 without queries
    HeapArray<float> keys = {};            // packs_once: [batch][num_kv_heads][panel][step][column], floats or pairs
    // with_out: [batch][num_kv_heads][panel][step of keys][column], floats or pairs, 0 for what is not finite
    HeapArray<float> values = {};
    HeapArray<uint8_t> odd_keys = {};  // with_out: [batch][num_kv_heads][key]: 1, a value is not finite
    std::atomic<bool> has_odd_keys{false};
    HeapArray<float> no_bias = {};  // [column]: zeros
    HeapArray<float> scratch = {};  // ProbsScratch of each item

    int32_t tiles = 1;                  // of a block of rows
    OpMemory memory{heed_execution{}};  // with_out: the workspace

    int32_t tile_rows() const { return products->rows; }
    int32_t rows() const { return tiles * tile_rows(); }
    int64_t num_heads() const { return int64_t{plan.problem.batch} * plan.problem.num_heads; }
    int64_t num_panels() const {
        return (int64_t{plan.problem.max_kv_len} + products->columns - 1) / products->columns;
    }
    // From a row of products to the next: whole tiles and blocks, and an odd number of lines, which do not share the
    // sets of a cache.
    int32_t product_pitch() const {
        constexpr int32_t line = 16;
        return narrow(round_up(plan.problem.max_kv_len, std::max(products->columns, probs_block))) + line;
    }
    bool in_pairs() const { return products->dtype == HEED_BF16; }
    int32_t steps() const {
        const int32_t unit = linear_step_block * (in_pairs() ? 2 : 1);
        return (plan.problem.head_dim + unit - 1) / unit * linear_step_block;
    }
    heed_dtype step_dtype() const { return in_pairs() ? HEED_I32 : HEED_F32; }
    int64_t panel_floats() const { return int64_t{products->columns} * steps(); }
    // Rows of queries that read a head of keys and values.
    int64_t rows_of_keys() const {
        return int64_t{plan.problem.max_q_len} * (plan.problem.num_heads / plan.problem.num_kv_heads);
    }
    // Few queries would not repay it: packing an element costs what 30 products do.
    bool packs_once() const { return rows_of_keys() > int64_t{4} * tile_rows(); }
    // Whether packed values and probabilities take less time than a kernel of attention, which computes the logits
    // again: on matrix tiles, which both pack for, from a tile of rows on. Xeon with AMX, 24 sequences of 100 tokens, 8
    // heads of 64 and 111: a layer with weights takes 0.93 of the time; 32 rows on 2048 keys 1.0.
    bool repays_values() const { return packs_once() || (sums_in_tiles() && rows_of_keys() >= tile_rows()); }
    int64_t value_panels() const {
        return (int64_t{plan.problem.head_dim_v} + value_products->columns - 1) / value_products->columns;
    }
    bool values_in_pairs() const { return value_products->dtype == HEED_BF16; }
    int32_t value_step() const { return values_in_pairs() ? 2 : 1; }  // keys
    // Steps of so many keys, whole blocks.
    int64_t steps_of(int64_t num_keys) const {
        const int64_t unit = int64_t{linear_step_block} * value_step();
        return (num_keys + unit - 1) / unit * linear_step_block;
    }
    int64_t value_steps() const { return steps_of(plan.problem.max_kv_len); }
    int64_t value_floats() const { return value_panels() * value_products->columns * value_steps(); }
    // Rows of the tiles of weights of a block.
    int64_t value_rows() const { return round_up(rows(), value_products->rows); }
    // Floats of a row of sums of whole tiles.
    int32_t sums_pitch() const { return narrow(value_panels() * value_products->columns); }
    bool sums_in_tiles() const { return whole_tiles != nullptr && value_products == products; }
    // Whether what values are multiplied with, and the sums, are where the results are; also without values.
    bool lines_are_out() const { return !with_out || out.dtype == HEED_F32 || values_in_pairs(); }
    bool sums_are_out() const { return !with_out || plan.problem.dtype == HEED_F32; }
    int64_t kv_head_of(const int32_t *task) const {
        return int64_t{task[task_sequence]} * plan.problem.num_kv_heads + task[task_kv_head];
    }
    const int32_t *task_of(int64_t head) const { return task_of_head[head] < 0 ? nullptr : &tasks[task_of_head[head]]; }
    float *panels_of(int64_t b, int64_t g) {
        return keys.data() + (b * plan.problem.num_kv_heads + g) * num_panels() * panel_floats();
    }
};

inline char *bytes_at(const heed_tensor &tensor, heed_dtype dtype, int64_t index) {
    return static_cast<char *>(tensor.data) + index * dtype_bytes(dtype);
}

// Where token j of the task is in `view`, of k or v, and in that of its scales.
struct TokenPlace {
    int64_t element, scale;
};
TokenPlace token_place(const HostProbs &call, const int32_t *task, const View &view, int64_t j);

// `dim` elements of k or v at a token's place as floats, int8 ones times their scale.
void load_token(const HostProbs &call, const heed_tensor &tensor, const heed_tensor &scales, const TokenPlace &at,
                int32_t dim, float *to);

// Keys [panel * columns, (panel + 1) * columns) of the task side by side, as the products read them; zeros after the
// last, and after the last element.
void pack_key_panel(const HostProbs &call, const int32_t *task, int64_t panel, float *to);

// A panel of a head of keys and values, into call->keys.
void pack_panel_of(HostProbs *call, int64_t kv_head, int64_t panel);

// All panels of each head of keys and values.
heed_status pack_keys(HostProbs *call, const heed_execution &execution);

// The values of each head of keys and values, into call->values.
heed_status pack_values(HostProbs *call, const heed_execution &execution);

// Rows [first, first + count) of the task whose probabilities are known.
struct WeightedRows {
    const int32_t *task;
    int32_t first, count;
    int32_t end, width;  // of the keys that count, and of the lines
    heed_dtype dtype;    // of the lines
    const void *lines = nullptr;
    const float *scores = nullptr;
    int64_t line_stride = 0, score_stride = 0;
    float *tiles = nullptr, *sums = nullptr;  // scratch
};

// Rows of bf16 as tiles of x for whole_tiles, where they are: whole ones, of whole steps. Without data: they are not.
KernelBuffer tiles_in_place(const OpKernel &kernel, const KernelBuffer &rows);

// Products of tiles of x with panels, into whole tiles whose rows are `pitch` floats apart.
int multiply_tiles(const OpKernel &kernel, const KernelBuffer &x, const KernelBuffer &panels, float *out, int32_t pitch,
                   char (&message)[512]);

// Their output, by the values.
int multiply_values(const HostProbs &call, const WeightedRows &rows, char (&message)[512]);

// Zeros to the output of rows that see no key.
void clear_output(const HostProbs &call, const int32_t *task, int32_t first, int32_t count);

}  // namespace heed
