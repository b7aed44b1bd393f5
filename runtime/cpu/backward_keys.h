// A range of key blocks of a head of keys against all rows that see them: what tiles of floats and of bf16 share.
#pragma once

#include "cpu/attention_backward.h"
#include "kernel_call.h"

namespace heed {

class BackwardKeys {
public:
    virtual ~BackwardKeys() = default;

    // 0 or a kernel's negative code with its sentence.
    int run(char (&message)[512]);

protected:
    // Floats that dk, dv, the bias, the mask and logit_grads of a block take, from the start of a thread's scratch on.
    static int64_t shared_scratch(const BackwardLayout &layout);

    // rows_first: row i of key j of a tile is element i + j * queries; else j + i * keys.
    BackwardKeys(const BackwardCall &call, const BackwardSequence &sequence, int32_t kv_head, int32_t range,
                 float *scratch, bool rows_first);

    // The block of keys at `key` into the scratch, zeros behind the last key.
    virtual void load_keys(int32_t key) = 0;
    virtual int call_tile(int32_t head, int32_t row, int32_t key, char (&message)[512]) = 0;

    const BackwardCall &call_;
    const heed_problem &p_;
    const BackwardLayout &layout_;
    const BackwardSequence &seq_;
    const LogitValues values_;
    const int32_t kv_head_, range_, queries_, keys_;

    float *dk_, *dv_, *bias_, *logit_grads_;
    uint8_t *mask_;

    // A tile whose rows all see the first `count` of its keys needs no positions.
    struct TilePlace {
        int32_t head, row, key, count;
    };
    // The logits of a tile, for BackwardTileArguments and BackwardTileBf16Arguments: lse to bias, form, and from
    // first_query on.
    template <typename Arguments>
    void set_logits(const TilePlace &tile, Arguments *arguments) const;

    // First packed row of a block of rows.
    int64_t packed_row(int32_t head, int32_t row) const { return call_.row_of(seq_, head) + row; }
    float *dq_of(int32_t head) const;
    bool special_rows(int32_t head, int32_t row) const;

    // The last row of a block that exists; how many keys, from the block's first on, some row of the other block sees.
    int64_t last_row(int32_t row) const;
    int32_t seen_at(int32_t row, int32_t key) const;

    // Keys of the block that exist, and where a row of k or v lies.
    int32_t count_at(int32_t key) const;
    const char *row_at(const heed_tensor &tensor, const View &view, int32_t key) const;

    // Of a tile's mask, bias and logit_grads.
    KernelBuffer logits(void *data, heed_dtype dtype) const;

private:
    const int64_t kv_batch_, stride_i_, stride_j_;

    int run_block(int32_t key, char (&message)[512]);
    int64_t offset(const View &view, int32_t key) const;
    void store_keys(const heed_tensor &tensor, const View &view, int32_t key, int32_t elements, int32_t padded,
                    float *rows, float factor) const;
    bool sees(int32_t row, int32_t key) const;
    bool sees_all(int32_t row, int32_t key, int32_t count) const;
    int32_t form_of(int32_t row, int32_t key, int32_t count) const;
    template <typename Visit>
    void for_each_logit(const View &view, int32_t head, int32_t row, int32_t key, Visit visit) const;
    void load_logit_inputs(int32_t head, int32_t row, int32_t key) const;
    void add_bias_grads(int32_t head, int32_t row, int32_t key) const;
};

// Where `count` floats begin behind the `*total` taken so far, in steps of 128 bytes.
int64_t take_floats(int64_t count, int64_t *total);

// [chunks][rows][32] floats.
KernelBuffer chunked_buffer(float *data, int32_t elements, int32_t rows);

// Of each kind of tile: floats of a thread's scratch, and a range of keys.
int64_t float_tiles_scratch(const heed_problem &problem, const BackwardLayout &layout);
int run_float_tiles(const BackwardCall &call, const BackwardSequence &sequence, int32_t kv_head, int32_t range,
                    float *scratch, char (&message)[512]);
int64_t bf16_tiles_scratch(const BackwardLayout &layout);
int run_bf16_tiles(const BackwardCall &call, const BackwardSequence &sequence, int32_t kv_head, int32_t range,
                   float *scratch, char (&message)[512]);

}  // namespace heed
