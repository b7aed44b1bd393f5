#pragma once
// Private to the algorithm: what its parts (queries and ranges, blocks of keys, outputs) share.

#include "generators/attention/stages.h"

namespace heed {

class AttentionBuilder {
public:
    AttentionBuilder(const AttentionConfig &config, const AttentionInputs &in, AttentionStages &stages);
    void build();

private:
    using Expr = Halide::Expr;
    using Args = std::vector<Halide::Expr>;
    using Vars = std::vector<Halide::Var>;

    const AttentionConfig &cfg;
    const AttentionInputs &in;
    AttentionStages &st;
    const bool packs_groups;  // rows are (position, head of the group) pairs, and keys may be split
    const bool row_lanes;     // rows are the lanes
    Expr group_size, head_dim, head_dim_v;
    Halide::Func task_table, range_table;  // where the part at hand reads its task, its block_range
    Halide::Func head_table;               // and head_of_block, where it is a stage
    Expr row_block;                        // decode: which block of the task's rows the part at hand works on

    // A single value for bounds inference, inside a dimension: what the task table says has been validated.
    static Expr inside(const Expr &x, const Expr &extent) { return Halide::unsafe_promise_clamped(x, 0, extent - 1); }

    // ---- rows: which query position and head a row is. Rows after the last one repeat it.
    Expr field(int column) const { return task_table(column, st.t); }
    Expr num_rows() const;
    Expr blocks_per_task() const;
    // The block of rows at hand: its head of keys and values, counted from the task's first one, and its first row.
    Expr head_of_block() const;
    Expr first_row() const;
    Expr packed_row(const Expr &row) const;
    Expr position(const Expr &row) const;
    Expr head(const Expr &row) const;
    Expr kv_head() const;
    Expr padded(const Expr &length) const;
    void define_queries();

    // ---- which keys
    void define_ranges();
    // The components of block_range; after seen_end those of a sweep, or of the part at hand of the keys.
    enum {
        full_begin,
        full_steps,
        left_steps,
        masked_steps,
        seen_end,
        plain_steps,
        mixed_steps,
        as_is_steps,
        added_steps,
        part_begin = seen_end + 1,  // first key of `full`
        part_steps
    };
    Expr is_first_part() const { return field(task_part_begin) == 0; }
    Expr is_last_part() const { return field(task_part_end) == no_part_end; }
    Expr range(int component) const { return range_table(st.t, st.sp)[component]; }
    // Packed keys: the component with the first unit of keys that some row sees.
    int first_unit() const { return 1 + (cfg.sweeps() ? added_steps : cfg.takes_parts() ? part_steps : seen_end); }
    struct Range {
        Expr seen_begin, seen_end, full_begin, full_end;
    };
    std::pair<Expr, Expr> seen_by(const Expr &i) const;
    Range seen_by_position() const;
    Halide::Tuple blocks_of(const Expr &swept, bool classed = false) const;
    Expr least_class(const Expr &swept) const;
    void define_first_key(BlockChain &chain);
    bool has_classes(const BlockChain &chain) const { return cfg.sweeps() && !chain.ranged && !chain.only_adds(); }
    Expr first_key(const BlockChain &chain) const {
        Halide::FuncRef first = chain.first_key(in_step({}));
        return has_classes(chain) || counts_seen(chain) ? Expr(first[0]) : Expr(first);
    }
    Expr first_key(const BlockChain &chain, const Expr &step) const;
    Expr key_position(const BlockChain &chain, const Expr &k) const;
    KeySlot slot(const BlockChain &chain, const Expr &k, bool is_seen = false) const;
    KeySlot slot_in_place(const BlockChain &chain, const Expr &k, bool is_there) const;
    void define_slots(BlockChain &chain);
    Halide::Tuple looked_up(const Expr &pos, const Expr &sequence, const Expr &first_key, const Expr &kv_batch,
                            const KeySlot &end) const;
    Expr bias(const Expr &pos, bool may_lie_outside) const;
    Expr by_rows(Halide::Func &rows, TransposedTiles &tiles, const Expr &element) const;
    void define_visibility(BlockChain &chain);
    bool hides(const BlockChain &chain) const {
        return chain.ranged || (chain.tested ? cfg.per_logit() : static_cast<bool>(cfg.score_mod.visible));
    }
    ScorePlace place(const Expr &pos) const;
    Expr block_visible(const BlockChain &chain, const Expr &step) const;
    Expr of_row(const Halide::Func &tensor, const Expr &row, const Expr &key) const;
    Expr per_logit(const Halide::Func &tensor, const Expr &pos, bool may_lie_outside) const;

    // Whether a step knows the number of its keys up to the last one that some row sees; it; whether all rows see them.
    bool counts_seen(const BlockChain &chain) const { return row_lanes && chain.ranged; }
    // Whether values are read of these keys alone: not by pairs.
    bool reads_seen(const BlockChain &chain) const { return counts_seen(chain) && !cfg.bf16_dots; }
    Expr seen_keys(const BlockChain &chain) const { return chain.first_key(in_step({}))[1]; }
    Expr all_see(const BlockChain &chain) const;

    // ---- packed keys and values
    using Stored = std::function<Expr(const Expr &d, const Expr &k)>;
    void define_packed();
    void define_packed_block(BlockChain &chain);
    void define_packed_blocks(PackedBlocks &packed, const Vars &of_block, const Stored &key, const Stored &value);
    const PackedBlocks &packed_of(const BlockChain &chain) const;
    Expr in_packed_block(const BlockChain &chain, Halide::Func PackedBlocks::*of, Args first) const;
    Expr packed_key(const BlockChain &chain) const;
    Expr packed_block(const BlockChain &chain) const;
    bool reads_keys_in_place(const BlockChain &chain) const;
    void define_packed_product(BlockChain &chain);
    void define_packed_values(BlockChain &chain);
    void define_packed_dots(BlockChain &chain);
    void define_packed_weights(BlockChain &chain);

    // ---- what mask and bias hide
    struct Sight {
        Expr some, as_is;
    };
    void define_sights(KeySights &sights, const Expr &asked, int chunks, const std::function<Expr(Expr)> &first,
                       const Args &rest);
    Sight sight(const KeySights &sights, const Args &at) const;
    void define_bias_read();
    void define_sweep();
    void define_ends();
    void define_classes();
    Range narrowed(const Range &range, const Expr &swept) const;
    std::pair<Expr, Expr> steps_by_class(const Range &range, const Expr &full_steps, const Expr &swept) const;
    Expr class_of_block(BlockSights &sights, const Expr &first);

    // ---- one block of keys
    // The coordinates of a stage: of the rows of a task; of a split's; of a block of keys of all or of one block of
    // rows.
    Args of_rows(Args first) const;
    Args of_state(Args first) const;
    Args in_step(Args first) const;
    Args in_block(Args first) const;
    static Vars vars(const Args &args);
    bool modifies_logits(const BlockChain &chain) const { return cfg.modifies_logits() && !chain.as_is; }
    Expr keeps_logits() const;
    Expr block_bias(const BlockChain &chain, const Expr &k) const;
    // A whole block's bias, of words of two keys, which must be neighbours in memory.
    Expr bias_of_pairs(BlockChain &chain) const;
    // The byte of the mask for st.k, the others of its word being 0.
    Expr mask_of_words(BlockChain &chain) const;
    Expr if_visible(const BlockChain &chain, const Expr &k, const Expr &value, const Expr &otherwise) const;
    Expr element(const BlockChain &chain, const KvSource &source, const PaddedRows &rows, const Expr &d, const Expr &k,
                 bool is_seen = false) const;
    // An element of v, in loops that end with the keys that are seen.
    Expr value_element(const BlockChain &chain, const Expr &d, const Expr &k) const {
        const Expr of_row = cfg.repeats_values() ? min(Halide::likely(d), head_dim_v - 1) : d;
        return element(chain, in.v, chain.v_rows, of_row, k, reads_seen(chain));
    }
    void define_copies(BlockChain &chain);
    void define_products(BlockChain &chain);
    void define_logits(BlockChain &chain);
    // What weights of a step are relative to, by the largest logit of its block, and what multiplies the sums of the
    // steps before it.
    struct Moved {
        Expr reference, factor;
    };
    Moved moved_reference(const Expr &block_max, float slack) const;
    void define_softmax(BlockChain &chain);
    void define_dropout(BlockChain &chain);
    void define_values(BlockChain &chain);
    void define_block_out(BlockChain &chain, bool nonfinites, const std::function<Expr(const Expr &key)> &value);
    Expr value_weight(const BlockChain &chain, const Expr &key) const;
    static Expr exponent_of_nonfinites(const Halide::Type &type);
    static Expr second_key_first(const Expr &k);
    static Expr is_nonfinite(const Expr &bits);
    void define_nonfinite_end(BlockChain &chain);
    Expr all_seen(BlockChain &chain);
    int slot_of(AttentionStages::Slot slot) const { return AttentionStages::place(cfg, slot); }
    void define_step(BlockChain &chain);
    int max_masked_steps() const;

    // ---- the results of a row
    void define_prefill_outputs();
    void define_decode_outputs();
    void define_wide_outputs();
    void define_split_state(Args place);
    Expr split_task(const Expr &split) const;
    void define_result_of_lanes(const Expr &row_max, const std::function<Expr(const Expr &)> &sums);
    void define_transposed_out(const Expr &sum);
    void define_row_result(const Expr &row_max, const Expr &row_sum, const Expr &exact_sum);
    void define_out(const Expr &value);
};

}  // namespace heed
