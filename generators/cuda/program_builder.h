#pragma once
// Attention of a block of query rows on the tensor cores of sm_90, as device code: prefill of f16 and bf16.
// FlashAttention-2 (Dao, arXiv 2307.08691): each warp owns 16 query rows and all columns of their output; the keys and
// values that the block may see pass through shared memory in blocks of kv_block, copied while the tensor cores work on
// the one before; one accumulator, rescaled when a running maximum grows. Products are those of warpgroup.h.
//
// A thread holds of its warp's 16 rows two, g and g + 8 (g = lane / 4), so that a row's maximum and sum are those of
// four lanes.
//
// Parts in their order: program_place.cpp, program_loads.cpp, program_logits.cpp, program_softmax.cpp,
// program_results.cpp, joined in attention_program.cpp.

#include <functional>
#include <vector>

#include "generators/attention/stages.h"
#include "generators/cuda/attention_tile.h"
#include "generators/cuda/device_code.h"
#include "generators/cuda/device_tensor.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/warpgroup.h"

namespace heed::cuda {

// a / b of Int(32) of which none is negative, b not 0: cheaper than signed ones.
inline Expr quotient(const Expr &a, const Expr &b) {
    return Halide::cast<int32_t>(Halide::cast<uint32_t>(a) / Halide::cast<uint32_t>(b));
}

// To an element of a tensor, UInt(64).
inline Expr element_bytes(const Expr &index, const Expr &stride, int size) {
    return Halide::cast<uint64_t>(Halide::cast<int64_t>(index) * Halide::cast<int64_t>(stride) *
                                  Halide::cast<int64_t>(size));
}

#define HEED_TENSOR_MEMBER(name, element, dims) DeviceTensor name;
struct ProgramInputs {
    HEED_ATTENTION(HEED_TENSOR_MEMBER, HEED_EXPR_MEMBER, HEED_TENSOR_MEMBER)
    Expr row_blocks, group_size;  // blocks of rows of max_q_len queries; query heads of a head of K and V
};

class ProgramBuilder {
public:
    ProgramBuilder(const AttentionConfig &config, const AttentionTile &tile, const ProgramInputs &in, const Expr &block,
                   const Expr &thread);
    // What thread `thread` of block `block` does; there are row_blocks * num_heads * batch blocks.
    Halide::Internal::Stmt build();

    // Blocks whose keys are known at once, since values arrive a step after their keys; bytes of a found key, the
    // addresses of its rows of K and V.
    static constexpr int found_blocks = 4, found_key_bytes = 16;

    // Shared memory: addresses of keys that are found through pages, Q, two buffers of K, two of V. Q, K and V are in
    // the panels of warpgroup.h. Steps key by key put their weights in the place of K.
    struct Shared {
        int weight_row;          // bytes
        int k_buffer, v_buffer;  // bytes of one buffer
        int q, k, v, bytes;      // begin of Q, K and V, size of all
    };
    static Shared shared_of(const AttentionConfig &config, const AttentionTile &tile);

private:
    using Tensor = DeviceTensor;
    static constexpr int size = 2;  // bytes of an element
    const AttentionConfig &cfg;
    const AttentionTile &tile;
    const ProgramInputs &in;
    const int depth, depth_v;        // elements of a row of Q and K, of V: multiples of 16, zeros after the head dim
    const int key_tiles, out_tiles;  // tiles of 8 columns of the logits of a step, of the output
    const Shared shared;
    Expr block, thread;
    DeviceCode code;

    // ---- Where this block is
    Expr lane, warp, group, quad;  // group = lane / 4, quad = lane % 4
    Expr warp_rows;                // first row of this warp in the block
    Expr head, kv_head, sequence, first_row;
    Expr q_len, first_q, kv_len, first_key, visible_begin, visible_end, position_offset;
    Expr first_block, num_blocks;  // of keys
    Expr full_begin, full_end;     // keys that all rows see
    void locate();
    void read_sequence();
    void choose_keys();
    void choose_addresses();
    void make_registers();
    Expr element_at(const Expr &rows, int count, const Expr &row, const Expr &d) const;
    Expr key_start(const Expr &j) const { return (first_block + j) * tile.kv_block; }

    // ---- A thread's part. Row r = 0 is row `group` of its warp, row 1 is group + 8. Sums of the output are in the
    // registers of warpgroup.h until all keys are done, then in `out`
    static constexpr int rows_of_thread = 2;
    Registers logits, out, row_max, row_sum;  // a step's weights take the place of its logits
    Registers bases, factors;  // of this step: what the exponent subtracts, and by what the state shrinks
    Expr minus_infinity;
    Expr unit;  // factor of the logits in the exponent
    int logit_register(int r, int n, int e) const { return 4 * n + 2 * r + e; }
    Expr logit(int r, int n, int e) const { return logits[logit_register(r, n, e)]; }
    Expr row(int r) const { return first_row + warp_rows + group + 8 * r; }  // its position in the sequence
    Expr key(const Expr &start, int n, int e) const;                         // position of column e of tile n
    void reset();
    Expr sum_so_far(int i) { return code.let("so_far", sum(i)); }

    // ---- Loads
    Expr shared_at, q_at;   // shared memory; the rows of this warpgroup there
    Expr k_rows, v_rows;    // addresses of the sequence's first key and value, or of slot 0 of page 0
    Expr k_whole, v_whole;  // whether rows can be copied 16 bytes at once
    Expr row_address(const Tensor &tensor, const Expr &batch, const Expr &of_head, const Expr &token) const;
    Expr in_whole_chunks(const Tensor &tensor, int length) const;
    void load_queries();
    void find_keys(const Expr &j);
    Expr found_key(const Expr &j, const Expr &in_block) const;
    struct Rows;  // of K or V
    Expr key_address(const Rows &rows, const Expr &j, const Expr &in_block) const;
    void load_rows(const Rows &rows, const Expr &j);
    void load_whole_rows(const Rows &rows, const Expr &j);
    void load_elements(const Rows &rows, const Expr &j);
    void load_keys(const Expr &j, const Expr &buffer);
    void load_values(const Expr &j, const Expr &buffer);

    // ---- All blocks of keys: with loads under way, or one thing after the other and V key by key
    void run_pipeline();
    void run_key_by_key();
    void step_key_by_key(const Expr &j);

    // ---- One block of keys
    void begin_scores(const Expr &buffer);
    void take_scores();
    void multiply_keys(const Expr &buffer);
    void change_row(int r, const std::function<Expr(const Expr &, int, int)> &change);
    void change_logits(const Expr &j);
    void scale_logits();
    void add_alibi(const Expr &start);
    Expr per_logit_row(const Tensor &tensor, int r, int bytes);
    Expr per_logit(const Tensor &tensor, const Expr &row, const Expr &start, int n, int e, int bytes) const;
    void add_bias_tensor(const Expr &start, const Tensor &tensor, bool as_f32);
    void apply_mask(const Expr &start);
    void hide(const Expr &start);
    void softmax(bool stores_weights);
    Expr over_quad(Expr x, const std::function<Expr(const Expr &, const Expr &)> &combine);
    Expr largest_logit(int r);
    Expr exponential(const Expr &x, const Expr &base) const;
    void subtract_huge_maxima(const std::vector<Expr> &old_max);
    void rescale();
    void rescale_if_grown();
    void hand_weights_over();
    void pack_weights();
    void begin_sums(const Expr &buffer);
    void multiply_values(const Expr &buffer);
    void store_weights(int r, int n, const Expr &first, const Expr &second);
    Expr weights_at(int r) const;
    void multiply_values_key_by_key();
    void drop_what_is_not_finite();
    Expr finite_or_zero(const Expr &four) const;

    // ---- Results
    Expr some_result_is_nan();
    Expr in_pairs(const Tensor &tensor) const;
    void store_row(int r, const Expr &factor, const Expr &pairs, const Expr &at);
    void store_result(int r, const Expr &pairs);
    void store_results();
};

}  // namespace heed::cuda
