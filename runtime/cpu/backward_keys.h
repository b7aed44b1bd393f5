// A task of gradients, a range of key blocks of a head of keys against the queries of a step that see them: what tiles
// of floats and of bf16 share.
#pragma once

#include "runtime/cpu/backward_rows.h"
#include "runtime/kernel_call.h"
#include "runtime/layer/parts.h"

namespace heed {

// What a thread needs for a block of keys.
struct KeysScratch {
    float *dk_, *dv_, *logit_grads_, *bias_;
    uint8_t *mask_;

    KeysScratch(const BackwardLayout &layout, Parts *scratch);
};

class BackwardKeys : protected KeysScratch {
public:
    virtual ~BackwardKeys() = default;

    // 0 or a kernel's negative code with its sentence.
    int run(char (&message)[512]);

protected:
    // rows_first: row i of key j of a tile is element i + j * queries; else j + i * keys.
    BackwardKeys(const BackwardCall &call, const BackwardSequence &sequence, const KeysTask &task, Parts *scratch,
                 bool rows_first);

    // The block of keys at `key` into the scratch, zeros after the last key.
    virtual int load_keys(int32_t key, char (&message)[512]) = 0;
    virtual int call_tile(int32_t head, int32_t row, int32_t key, char (&message)[512]) = 0;

    const BackwardCall &call_;
    const heed_problem &p_;
    const BackwardLayout &layout_;
    const BackwardSequence &seq_;
    const LogitValues values_;
    const KeysTask task_;
    const int32_t queries_, keys_;

    // A tile whose rows all see the first `count` of its keys needs no positions.
    struct TilePlace {
        int32_t head, row, key, count;
    };
    // The logits of a tile, for BackwardTileArguments and BackwardTileBf16Arguments: lse to bias, form, and from
    // first_query on.
    template <typename Arguments>
    void set_logits(const TilePlace &tile, Arguments *arguments) const;

    // First packed row of a block of rows.
    int64_t packed_row(int32_t head, int32_t row) const { return call_.packed_row_of(seq_, head) + row; }
    // dq of the block.
    float *dq_at(int32_t head, int32_t row) const {
        return call_.at<float>(layout_.dq) + packed_row(head, row) * layout_.head_dim;
    }
    bool nonfinite_rows(int32_t head, int32_t row) const;

    // The last row of a block that exists; how many keys, from the block's first on, some row of the other block sees.
    int64_t last_row(int32_t row) const;
    int32_t seen_at(int32_t row, int32_t key) const;

    // Keys of the block that exist, and their rows of k or v.
    int32_t count_at(int32_t key) const;
    TensorRows rows_at(const heed_tensor &tensor, const View &view, int32_t key, int32_t elements) const;

    // For a tile's mask, bias and logit_grads.
    KernelBuffer logits(void *data, heed_dtype dtype) const;

private:
    const int64_t kv_batch_, stride_i_, stride_j_;
    int32_t first_row_, end_row_;  // of the step

    int run_block(int32_t key, char (&message)[512]);
    int run_head(int32_t head, int32_t key, bool *loaded, char (&message)[512]);
    void place_sums(int32_t key);
    int store_keys(const heed_tensor &tensor, const View &view, int32_t key, int32_t elements, float *rows,
                   float factor, char (&message)[512]) const;
    bool sees(int32_t row, int32_t key) const;
    bool sees_all(int32_t row, int32_t key, int32_t count) const;
    int32_t form_of(int32_t row, int32_t key, int32_t count) const;
    template <typename Visit>
    void for_each_logit(const View &view, int32_t head, int32_t row, int32_t key, Visit visit) const;
    void load_logit_inputs(int32_t head, int32_t row, int32_t key) const;
    int add_bias_grads(int32_t head, int32_t row, int32_t key, char (&message)[512]) const;
};

// For each kind of tile: takes a thread's scratch, and a task.
void take_float_tiles(const heed_problem &problem, const BackwardLayout &layout, Parts *scratch);
int run_float_tiles(const BackwardCall &call, const BackwardSequence &sequence, const KeysTask &task, Parts *scratch,
                    char (&message)[512]);
void take_bf16_tiles(const BackwardLayout &layout, Parts *scratch);
int run_bf16_tiles(const BackwardCall &call, const BackwardSequence &sequence, const KeysTask &task, Parts *scratch,
                   char (&message)[512]);

}  // namespace heed
