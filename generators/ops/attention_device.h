#pragma once
// Attention of tensors at addresses. A block has rows of queries of a head; the keys that they may see pass in steps,
// with the online softmax (Milakov and Gimelshein, arXiv 1805.02867): the state is rescaled when a maximum grows.
//
// Decode (has_gqa): a row is a head of a group at a position, row = position * heads of a group + head, so that a block
// reads a head of K and V once for all of them. Splits of the keys leave states for merge_splits.h.

#include <functional>

#include "generators/ops/attention_addresses.h"
#include "generators/ops/device_scores.h"
#include "generators/ops/product.h"

namespace heed {

struct AttentionDevice : DeviceScores<AttentionAddresses> {
    // `products`: of the rows of a block and the keys of a step, whose values are read `chunk` at a time; columns: of
    // the output, all of them; lanes: partial maxima and sums of a row; in_fragments: lane u has columns
    // 2 u and 2 u + 1 of each eight, as mma.m16n8k16 deals them out, and its own numbers of a row. parts: a step's keys
    // are shared out to so many parts of the block's rows, of which each has all queries of the block; their states
    // are one at the end, handed over in arrays of so many columns.
    struct Tile {
        ProductTile products;
        int chunk, columns, lanes;
        bool in_fragments = false;
        int parts = 1;
        int columns_handed_over = columns;
        bool holds_queries = false;  // a thread has elements of queries; else products read them from shared memory
        // By how many powers of 2 a weight may be above 1 before a row's maximum, and with it its state, follows: a
        // weight of 2^8 is as exact, and the state is seldom touched (Zadouri et al., FlashAttention-4). Sums of values
        // are up to as many powers larger: of bf16 above 2^100 they may be infinite where the result is not.
        float most_growth = 0;
        bool in_warpgroups = false;  // products of warpgroups, of sm_90

        int queries() const { return products.rows / parts; }
        int keys_of_row() const { return products.columns / parts; }
    };
    const Tile tile;

    Halide::Var row{"row"}, column{"column"}, across{"across"};  // of a block; of the step's keys that it meets; step
    Halide::Var key{"key"};                                      // of a step
    Halide::Var of_block{"of_block"};                            // which query
    static constexpr int searchers = 32;                         // of the first step that is seen
    Halide::Var searcher{"searcher"};
    Halide::Var d{"d"}, handed_over{"handed_over"}, u{"u"}, in_chunk{"in_chunk"}, chunk{"chunk"}, sequence{"sequence"};
    Halide::RDom steps, over_columns;  // of a row's lane: in fragments of a pair, pair
    Halide::RDom over_keys;            // in a chunk, chunk of a step
    Halide::RDom over_counters;        // of dropout, of a lane in fragments
    Halide::RDom over_uncounted;       // of a row's lane that shares no counters of dropout: in a pair, pair
    Halide::RDom over_pairs;           // in a pair, pair of a lane's columns of the output
    Halide::RDom over_searched;        // of a searcher's steps
    Halide::RDom all;                  // column of the output, row, block
    Halide::RDom faults;               // key, sequence

    Halide::Func fields{"fields"};  // (sequence): what the table says of it
    Halide::Func met{"met"};        // (down): first key, number of steps; first and last key that all rows see
    // (down), in fragments: what score functions ask of a block; its first key, and how many steps a searcher has
    Halide::Func block_values{"block_values"};
    Halide::Func first_seen{"first_seen"};  // (searcher, down): the first step of a searcher that some row sees
    Halide::Func paged_head{"paged_head"};  // (down), of parts: where a sequence's page table is; head of keys
    Halide::Func q_rows{"q_rows"};          // (row, down): address of the row; the last one is repeated
    Halide::Func row_range{"row_range"};    // (row, down): first key that the row sees by its position, and how many
    // (of_block, down), in fragments: what logits need of a query of a block, addresses of its rows of mask and bias,
    // its head's slope and its position, for score functions its number and head, of these what the kernel has.
    Halide::Func query_values{"query_values"};
    Halide::Func first_elements{"first_elements"};  // the same: of the query's row in the mask of dropout
    // (key, across, down): addresses of k and v, and scales of codes, in fragments their number; the same
    Halide::Func key_rows{"key_rows"};
    Halide::Func scales{"scales"};  // (key, 0 or 1, across, down), of codes in fragments: of k, of v
    TileProduct product;            // (column, row, across, down)
    Halide::Func dots{"dots"};      // the same, for who changes them
    // (column, row, across, down), in fragments: each makes one change to the logits of the stage before it. A block
    // passes over those that the call does not ask for.
    std::vector<Halide::Func> stages;
    Halide::Func of_user;  // one of them
    // (column, row, across, down): in log16, in fragments that nothing changes unscaled; minus infinity: hidden
    Halide::Func logits{"logits"};
    Halide::Func lane_max{"lane_max"}, lane_sum{"lane_sum"};  // (u, row, across, down)
    // (row, across, down), in fragments (u, row, across, down): of all steps so far, sums there of a lane's columns.
    Halide::Func old_max{"old_max"}, row_max{"row_max"}, factor{"factor"}, row_sum{"row_sum"};
    Halide::Func pair_max{"pair_max"}, base{"base"};  // in fragments: of two lanes; what exponents subtract
    Halide::Func doubts{"doubts"};  // (u, row, down): whether the state is to be computed in_repetition()
    Halide::Func last_sum{"last_sum"}, pair_sum{"pair_sum"};  // (u, row, down): of a lane, of two
    // Of codes in fragments, (u, row, across, down): the largest weight of a row's values so far, in units of which the
    // state and the weights are; by what the state shrinks.
    Halide::Func old_unit{"old_unit"}, lane_unit{"lane_unit"}, pair_unit{"pair_unit"}, row_unit{"row_unit"};
    Halide::Func of_unit{"of_unit"}, unit_factor{"unit_factor"};
    Halide::Func last_unit{"last_unit"};            // (u, row, down)
    Halide::Func scaled_weights{"scaled_weights"};  // (column, row, across, down)
    Halide::Func weights{"weights"};                // (column, row, across, down)
    // With the arguments of weights: whether dropout keeps one; what values are multiplied by. In fragments kept is
    // (u, row, across, down), bits of a lane's weights; counted has the bits of a lane's counters, gathered those of
    // two lanes'.
    Halide::Func kept{"kept"}, value_weights{"value_weights"};
    Halide::Func counted{"counted"}, gathered{"gathered"};
    Halide::Func values{"values"};              // (d, in_chunk, chunk, across, down)
    Halide::Func block_out{"block_out"};        // (d, row, across, down)
    Halide::Func state{"state"};                // (d, row, down)
    Halide::Func part_numbers{"part_numbers"};  // (u, row, down), of parts: maximum, sum
    // (handed_over, row, down), of parts: columns of the state.
    std::vector<Halide::Func> part_states;
    // (row, down), in fragments without parts (u, row, down): factor of the output; lse, or the maximum of a state;
    // sum.
    Halide::Func results{"results"};
    // (u, row, down), in fragments without parts: the address of a lane's first column of a row of out, or 0. With
    // parts (of_block, down): the addresses of a row of out, or 0, and of its split's state; factors of its parts.
    Halide::Func out_rows{"out_rows"};
    Halide::Func named{"attention"};
    int parts = 0;

    AttentionDevice(const AttentionConfig &config, const Tile &tile);

    std::vector<Halide::Argument> arguments() const { return args.arguments(); }
    std::vector<OutputType> output_types() const { return args.output_types(); }
    Halide::Pipeline pipeline() const { return Halide::Pipeline(named); }
    // Whether weights change before they multiply values.
    bool changes_weights() const { return config.has_dropout || config.has_kv_scales(); }
    // Whether a stage of logits has what a user's score function makes of them.
    bool asks_user() const { return config.score_mod.logit || config.score_mod.visible; }
    // Whether a block begins with the first step that a user's test does not hide.
    bool skips_first_steps() const { return tile.in_fragments && config.score_mod.block_visible; }
    // In fragments: neighbouring columns of the output that a lane has.
    int own_columns() const { return config.has_kv_scales() ? 4 : 2; }

protected:
    Expr field(SequenceField which, const Expr &of) const override {
        return fields.defined() ? fields(of)[which] : DeviceScores::field(which, of);
    }

private:
    static Expr wide(const Expr &x) { return Halide::cast<uint64_t>(x); }
    static Expr as_word(const Expr &x) { return Halide::reinterpret<uint32_t>(x); }
    static Expr as_float(const Expr &x) { return Halide::reinterpret<float>(x); }
    static Expr hidden_unless(const Expr &visible, const Expr &logit) {
        return as_float(select(visible, as_word(logit), Expr(negative_infinity_bits)));
    }
    // Whether logits are products as they are, of codes with the key's scale, and exponents have the scale.
    bool is_unscaled() const { return tile.in_fragments && !config.has_logit_features() && !config.score_mod.logit; }

    // first_row: in decode of all heads of a group.
    struct Block {
        Expr sequence, split, first_head, kv_head, first_row;
    };
    Expr blocks_of_head() const;
    Expr heads_of_row() const;  // of which a position has a row each
    Expr num_blocks() const;
    // Whether results go to out and lse; else a split's go to states.
    Expr is_whole() const { return config.has_gqa ? args.num_splits == 1 : Halide::Internal::const_true(); }
    Block block_of(const Expr &number) const;
    Row query_in(const Block &block, const Expr &in_block) const;
    Row query(const Expr &row, const Expr &number) const { return query_in(block_of(number), query_of(row)); }
    Expr key_of(const Expr &column, const Expr &step, const Expr &number) const;
    Expr key_exists(const Expr &in_step) const {
        return key_of(in_step, across, down) < field(sequence_kv_len, block_of(down).sequence);
    }
    // Products of run-time head dims sum as many elements at a time, up to the last that a row has.
    static constexpr int elements_at_once = 64;
    static Expr is_used(const Expr &element, const Expr &length) {
        return of_terms(element / elements_at_once < max((length + (elements_at_once - 1)) / elements_at_once, 1));
    }
    Expr is_in_range(const Expr &j) const {
        return Halide::cast<uint32_t>(j - row_range(row, down)[0]) < row_range(row, down)[1];
    }
    // The 16 rows of a warp belong to one part. The next 16 rows are the same queries in the next part.
    Expr query_of(const Expr &of_row) const {
        return tile.parts == 1 ? of_row : of_row / (16 * tile.parts) * 16 + of_row % 16;
    }
    Expr row_of(const Expr &query, int part) const {
        return tile.parts == 1 ? query : query / 16 * (16 * tile.parts) + query % 16 + 16 * part;
    }
    // The key of a step that is number `number` of those that a row meets.
    Expr key_in_step(const Expr &number, const Expr &of_row) const {
        return tile.parts == 1 ? number : number + of_row / 16 % tile.parts * tile.keys_of_row();
    }
    // The place of a row's number that the lane with a column has: of logits, of the output.
    std::vector<Expr> of_row(const Expr &column, std::vector<Expr> row) const { return of_lane(column, 2, row); }
    std::vector<Expr> of_output(const Expr &d, std::vector<Expr> row) const { return of_lane(d, own_columns(), row); }
    std::vector<Expr> of_lane(const Expr &column, int own, std::vector<Expr> row) const;
    Expr scale_of_key(int of_values, const Expr &in_step) const;
    Expr output(const Expr &column, const Expr &of_row, const Expr &number) const;
    Expr state_of_part(const Expr &column, const Expr &of_row, const Expr &number) const;
    Expr number_of_scale(const Expr &in_batch, const Expr &of_head, const Expr &of_token) const;
    Expr carried_number(const Halide::Func &f, const Expr &lane, const Expr &step) const;
    Expr exponent_unit() const;
    Expr is_huge(const Expr &largest) const;
    void define_doubts(const Expr &sum, const Expr &largest);
    std::pair<Expr, Expr> sum_of_lanes(const Expr &sum, const Expr &largest);
    Expr merge_parts(Expr &sum, Expr &largest);

    void define_places();
    void define_logits();
    void define_logits_of_fragments(const Expr &dot);
    void define_query_values();
    Expr changed_in_stages(const Expr &dot);
    static Expr other_lane(const Halide::Var &u, int bit);
    Expr by_user(const Expr &logit, const ScorePlace &place) const;
    Expr drops() const { return args.dropout_threshold != Halide::cast<uint64_t>(0); }
    Expr first_element(const Row &of_query) const;
    void define_kept();
    void define_kept_of_fragments();
    Expr keeps_weight() const;
    void define_softmax();
    void define_softmax_of_fragments();
    void define_value_weights_of_fragments();
    void define_units();
    void define_values();
    void define_results();
    void add(const Expr &of_out, const Expr &of_lse);
    void add_rows();
    void add_rows_of_fragments();
    void add_rows_of_parts();
    void add_faults();
    Expr is_hidden(const Expr &weight) const;
    std::vector<Expr> asked_of(const std::function<Expr(SequenceField)> &read) const;
    void define_first_seen();
    Expr is_seen_block(const Expr &first_key) const;
};

}  // namespace heed
