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
    const bool prefill;
    Expr group_size, head_dim, head_dim_v;
    Halide::Func task_table;  // where the part at hand reads its task

    // A single value for bounds inference, inside a dimension: what the task table says has been validated.
    static Expr inside(const Expr &x, const Expr &extent) { return Halide::unsafe_promise_clamped(x, 0, extent - 1); }

    // ---- rows: which query position and head a row is. Rows behind the last one repeat it.
    Expr field(int column) const { return task_table(column, st.t); }
    Expr num_rows() const;
    Expr packed_row(const Expr &row) const;
    Expr position(const Expr &row) const;
    Expr head(const Expr &row) const;
    Expr kv_head() const;
    Expr padded(const Expr &length) const;
    void define_queries();

    // ---- which keys
    void define_ranges();
    Expr range(int component) const { return st.block_range(st.t, st.sp)[component]; }
    void define_first_key(BlockChain &chain);
    Expr first_key(const BlockChain &chain, const Expr &step) const;
    Expr key_position(const BlockChain &chain, const Expr &k) const;
    KeySlot slot(const BlockChain &chain, const Expr &k) const;
    void define_slots(BlockChain &chain);
    Expr bias(const Expr &pos, bool may_lie_outside) const;
    Expr by_rows(Halide::Func &rows, TransposedTiles &tiles, const Expr &element) const;
    void define_visibility(BlockChain &chain);
    bool hides(const BlockChain &chain) const { return chain.ranged || cfg.per_logit(); }
    ScorePlace place(const Expr &pos) const;
    Expr block_visible(const BlockChain &chain, const Expr &step) const;
    Expr per_logit(const Halide::Func &tensor, const Expr &pos, bool may_lie_outside) const;

    // ---- one block of keys
    static Args in_block(const AttentionStages &st, Args first);
    Args in_block(Args first) const { return in_block(st, std::move(first)); }
    static Vars vars(const Args &args);
    Expr if_visible(const BlockChain &chain, const Expr &k, const Expr &value, const Expr &otherwise) const;
    Expr element(const BlockChain &chain, const KvSource &source, const PaddedRows &rows, const Expr &d,
                 const Expr &k) const;
    void define_copies(BlockChain &chain);
    void define_products(BlockChain &chain);
    void define_logits(BlockChain &chain);
    void define_softmax(BlockChain &chain);
    void define_dropout(BlockChain &chain);
    void define_weight_pairs(BlockChain &chain);
    void define_values(BlockChain &chain);
    Expr value_weight(const BlockChain &chain, const Expr &key) const;
    Expr value_pair(BlockChain &chain, const Expr &pair) const;
    static Expr exponent_of_specials(const Halide::Type &type);
    static Expr is_special(const Expr &bits);
    void define_special_end(BlockChain &chain);
    void define_step(BlockChain &chain);
    int max_masked_steps() const;

    // ---- the results of a row
    void define_prefill_outputs();
    void define_decode_outputs();
    void define_row_result(const Expr &row_max, const Expr &row_sum);
    void define_out(const Expr &value);
};

}  // namespace heed
