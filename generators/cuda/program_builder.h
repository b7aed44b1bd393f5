#pragma once
// Private to the attention program: what its parts share. Order of the parts: program_loads.cpp, program_logits.cpp,
// program_score.cpp, program_softmax.cpp, program_results.cpp, program_codes.cpp (int8 keys), joined in
// attention_program.cpp.

#include <functional>
#include <vector>

#include "generators/cuda/attention_program.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/warpgroup.h"

namespace heed::cuda {

class ProgramBuilder {
public:
    ProgramBuilder(const AttentionConfig &config, const AttentionTile &tile, const ProgramInputs &in, const Expr &block,
                   const Expr &thread);
    Halide::Internal::Stmt build();

    // Elements of a row in shared memory, zeros after the head dim: whole tiles of each warp.
    static int depth_of(const AttentionConfig &config);
    static int depth_v_of(const AttentionConfig &config, const AttentionTile &tile);

    // Shared memory: addresses (of keys that are found through pages), the buffers of scales, Q, the buffers of K,
    // those of V. Rows are 16 bytes longer than their elements, so that eight rows of a matrix are in different banks.
    // Steps key by key put their weights in the place of K, and warps that share rows their states in the place of K
    // and V.
    struct Shared {
        int found_key;                        // bytes of a key: addresses of its rows of K and V, offset of its scales
        int scale_buffer;                     // bytes of one buffer: the scales of a block of K, then those of V
        int q_row, k_row, v_row, weight_row;  // bytes
        int k_buffer, v_buffer;               // bytes of one buffer
        int scales, q, k, v, bytes;           // begin of the scales, of Q, K and V, size of all
        int states;                           // where states begin after the maxima and sums
    };
    static constexpr int bytes_of_row_state = 12;  // maximum, sum, unit of the output
    static Shared shared_of(const AttentionConfig &config, const AttentionTile &tile);
    // Blocks whose keys are known at once: with warpgroups values arrive a step after their keys.
    static int found_blocks(const AttentionTile &tile) { return tile.warpgroups ? 4 : 2; }
    static int panels_of(int depth) { return (depth + panel_columns - 1) / panel_columns; }

private:
    using Tensor = DeviceTensor;
    const AttentionConfig &cfg;
    const AttentionTile &tile;
    const ProgramInputs &in;
    const int size, kv_size;         // bytes of an element of Q, of K and V
    const int depth, depth_v;        // elements of a row of Q and K, of V; zeros after the head dim
    const int key_tiles, out_tiles;  // tiles of 8 columns of this warp's logits, of its output
    const int result_tiles;          // of the output that this warp stores
    const bool has_codes;            // int8 keys
    const Shared shared;
    Expr block, thread;
    DeviceCode code;

    // ---- Where this block is
    Expr lane, warp, group, quad;             // group = lane / 4, quad = lane % 4
    Expr warp_rows, column_group, key_group;  // first row of this warp in the block; which part of output, keys is its
    Expr head, kv_head, sequence, split, first_row, head_dim, head_dim_v;
    Expr q_len, first_q, kv_len, first_key, visible_begin, visible_end, position_offset;
    Expr num_rows;                 // of the sequence
    Expr first_block, num_blocks;  // of keys
    Expr full_begin, full_end;     // keys that all rows see
    void locate();
    void locate_block();
    void read_sequence();
    void choose_keys();
    void choose_addresses();
    void make_registers();
    Expr chunk_at(const Expr &rows, int count, int row_bytes, const Expr &row, const Expr &chunk) const;
    Expr element_at(const Expr &rows, int count, int row_bytes, const Expr &row, const Expr &d, int bytes) const;
    // Whether block j of keys exists and is not skipped.
    Expr is_key_block(const Expr &j) const {
        return cfg.score_mod.block_visible ? j < num_blocks && is_seen_block(j) : j < num_blocks;
    }
    Expr key_start(const Expr &j) const { return (first_block + j) * tile.kv_block; }

    // ---- A thread's part. Rows r: even ones are row `group` of a tile, odd ones group + 8
    Registers logits, weights, out, row_max, row_sum, q_fragments;
    Registers bases, factors;       // of this step: what the exponent subtracts, and by what the state shrinks
    Registers kept;                 // of this step, with dropout: a bit for each weight of a row
    bool sums_of_products = false;  // where the output is: in the registers of warpgroup.h, else in `out`
    Registers value_units;          // with has_codes: what `out` is in units of, see scale_weights
    Expr minus_infinity;
    Expr unit;  // factor of the logits in the exponent
    int rows_of_thread() const { return 2 * tile.m_tiles; }
    int logit_index(int m, int n) const { return m * key_tiles + n; }  // of a tile: four registers
    int logit_register(int r, int n, int e) const { return 4 * logit_index(r / 2, n) + r % 2 * 2 + e; }
    Expr logit(int r, int n, int e) const { return logits[logit_register(r, n, e)]; }
    int weight_index(int r, int n) const { return r * key_tiles + n; }
    int out_index(int m, int n) const { return m * out_tiles + n; }
    // A query: its position in the sequence and its head.
    struct Query {
        Expr position, head;
    };
    Query query_of(const Expr &row) const;  // of a row of the sequence
    std::vector<Query> queries;             // decode: of this thread's rows
    Expr row(int r) const { return first_row + warp_rows + group + 8 * r; }
    Query query(int r) const { return cfg.has_gqa ? queries[r] : query_of(row(r)); }
    Expr key(const Expr &start, int n, int e) const;  // position of its column e of tile n
    Expr first_key_of_warp() const { return key_group * tile.keys_of_warp(); }
    void reset();
    Expr sum_so_far(int i) { return sums_of_products ? code.let("so_far", sum(i)) : out[i]; }
    void set_sum_so_far(int i, const Expr &value);

    // ---- Loads
    Expr shared_at, q_at, k_at, v_at;  // shared memory; this lane's rows of matrices there
    Expr k_rows, v_rows;               // addresses of the sequence's first key and value, or of slot 0 of page 0
    Expr k_scales, v_scales;           // the same of their scales
    Expr k_whole, v_whole;             // whether rows can be copied 16 bytes at once
    int q_offset(int m, int k) const { return m * 16 * shared.q_row + k * 32; }  // of a fragment
    Expr row_address(const Tensor &tensor, const Expr &batch, const Expr &of_head, const Expr &token, int bytes) const;
    Expr in_whole_chunks(const Tensor &tensor, const Expr &length, int bytes) const;
    void load_queries();
    void store_query_chunk(const Expr &rows, const Expr &row, const Expr &column, const Expr &value);
    Expr query_column(const Expr &d) const;
    void find_keys(const Expr &j);
    Expr found_key(const Expr &j, const Expr &in_block) const;
    struct Rows;  // of K or V
    Expr key_address(const Rows &rows, const Expr &j, const Expr &in_block) const;
    void load_rows(const Rows &rows, const Expr &j);
    void load_whole_rows(const Rows &rows, const Expr &j);
    void load_elements(const Rows &rows, const Expr &j);
    void load_keys(const Expr &j, const Expr &buffer);
    void load_values(const Expr &j, const Expr &buffer);

    // ---- int8 keys: codes, and a scale for each row
    Expr scale_row(const Tensor &tensor) const;
    void load_scales(const Expr &rows, const Expr &j, const Expr &to);
    Expr scale_at(int of_values, const Expr &buffer, const Expr &in_block) const;
    std::vector<Expr> scales_of_columns(int of_values, const Expr &buffer);
    void scale_weights(int r, std::vector<Expr> &weights_of_row, const std::vector<Expr> &value_scales);
    void multiply_key_codes(const Expr &buffer, bool q_in_registers);
    void multiply_value_codes(const Expr &buffer);

    // ---- All blocks of keys: with loads under way, or one thing after the other and V key by key
    void load_first_blocks();
    void run_pipeline();
    void run_warpgroups();
    void run_key_by_key();

    // ---- One block of keys
    void step_single(const Expr &j);
    void step_pipelined(const Expr &j);
    void step_key_by_key(const Expr &j);
    Expr q_fragment(int m, int k, bool in_registers);
    void multiply(ElementType type, const Registers &tiles, int index, const Expr &a, const Expr &b, bool first);
    void multiply_keys(const Expr &buffer, bool q_in_registers);
    void multiply_keys_of_warpgroup(const Expr &buffer);
    void take_scores();
    void multiply_values_of_warpgroup(const Expr &buffer);
    std::vector<Expr> two_elements(const Expr &address);
    void change_row(int r, const std::function<Expr(const Expr &, int, int)> &change);
    void change_logits(const Expr &j, const Expr &buffer);
    void scale_logits(const Expr &buffer);
    void add_alibi(const Expr &start);
    Expr per_logit_row(const Tensor &tensor, int r, int bytes);
    Expr per_logit(const Tensor &tensor, const Expr &row, const Expr &start, int n, int e, int bytes) const;
    void add_bias_tensor(const Expr &start, const Tensor &tensor, bool as_f32);
    void apply_mask(const Expr &start);
    void apply_score_mod(const Expr &start);
    Expr is_seen_block(const Expr &j) const;
    void when_seen(const Expr &j, const std::function<void()> &step);
    void hide(const Expr &start);
    void softmax(const Expr &buffer, bool stores_weights);
    void find_kept(const Expr &start);
    Expr is_kept(int r, int n, int e) const;
    Expr over_quad(Expr x, const std::function<Expr(const Expr &, const Expr &)> &combine);
    Expr largest_logit(int r);
    Expr exponential(const Expr &x, const Expr &base) const;
    void subtract_huge_maxima(const std::vector<Expr> &old_max);
    void rescale();
    void rescale_if_grown();
    void hand_weights_over();
    void pack_weights();
    void drop_what_is_not_finite();
    Expr packed_weights(int m, int k) const;
    Expr stored_weights(int m, int k) const;
    void multiply_values(const Expr &buffer, bool finite_only);
    Expr is_finite(const Expr &value) const;
    Expr finite_or_zero(const Expr &four) const;
    void store_weights(int r, int n, const Expr &first, const Expr &second);
    Expr weights_at(int r) const;
    void multiply_values_key_by_key();

    // ---- Results
    Expr some_result_is_nan();
    void sum_quads();
    void merge_key_groups();
    Expr first_column() const;
    Expr in_pairs(const Tensor &tensor) const;
    int column_of_pair(int pair) const;
    Expr result(int r, int pair, int e) const;
    void store_row(int r, const Expr &factor, const Expr &pairs, const Expr &at);
    void store_result(int r, const Expr &pairs);
    void store_state(int r);
    void store_results();
};

}  // namespace heed::cuda
