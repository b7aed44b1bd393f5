#pragma once
// The algorithm: named stages of blocked attention with an online softmax. Schedules may touch what this struct names,
// only that.
//
// Coordinates, the same in every stage:
//   row  query row in a block of rows      rb  block of rows
//   c    head of the block: prefill: query head, and a row is a query position;
//        decode: kv head, and the rows are the packed (position, head of the group) pairs, so that all share k and v
//   b    batch      sp  split of the keys (prefill has one)
//   k    key in a block      kb  block of keys      d  element of a head      x  slot of the state
//
// The keys that a block of rows may see form one range. Its middle, visible to all rows, goes through the chain `full`
// in blocks of kv_block without a test of the range; its two ends go through the chain `masked` in blocks of
// masked_block. Online softmax: Milakov and Gimelshein, arXiv 1805.02867; the blocked form: Dao et al., arXiv
// 2205.14135; splits of the keys merged at the end: Dao et al., "Flash-Decoding" (2023).

#include <string>
#include <vector>

#include "Halide.h"
#include "attention_config.h"
#include "kv_source.h"

namespace heed {

// What a kernel reads; dimensions innermost first. The generator documents each.
struct AttentionInputs {
    Halide::Func q, mask, bias, seq;
    KvSource k, v;
    Halide::Expr scale, split_len, num_splits, mask_true_hides;
    Halide::Expr batch, num_heads, num_kv_heads, q_len, head_dim, head_dim_v;
};

// in(i, j) as a function of (j, i), by square tiles of lanes x lanes elements: each of log2(lanes) perfect shuffles (an
// interleave of the two halves of the tile) rotates the index of an element by one bit.
struct TransposedTiles {
    std::vector<Halide::Func> steps;  // (e, ti, tj, rest...)

    explicit TransposedTiles(const std::string &name) : name(name) {}
    Halide::Expr define(const AttentionConfig &config, const Halide::Func &in, const Halide::Var &i,
                        const Halide::Var &j, const std::vector<Halide::Var> &rest);

private:
    std::string name;
};

// Logits, softmax numerators and weighted values of one block of keys; (.., kb, rb, c, b, sp) throughout.
struct BlockChain {
    Halide::Func visible;            // (row, k): whether the row may attend to the key; only where some row may not
    Halide::Func product;            // (row, k): scaled q . k
    Halide::Func dot_tile;           // decode, (u, row, k): the same, summed per lane u of d
    Halide::Func dots;               // decode, (u, row, k): the same, copied from the registers of a tile
    std::vector<Halide::Func> sums;  // decode, (e, p, row, kq): the tree that sums the lanes of dot_lanes keys at once
    Halide::Func logits, weights;    // (row, k)
    Halide::Func block_max, block_sum;  // (row)
    Halide::Func sum_lanes;             // decode, (u, row): the weights summed per lane u of the keys
    Halide::Func value_tile;            // (row, d): weighted sum of values
    Halide::Func block_out;             // (row, d): the same, copied from the registers of a tile
    PaddedRows k_rows, v_rows;          // (d, k): used when the config pads rows
    Halide::RDom over_d, keys;
    Halide::RDom lane_keys, over_u;  // decode
    Halide::RDom steps;              // (slot of the state, block of keys)

    BlockChain(const std::string &suffix, int block, bool ranged);
    const std::string suffix;
    const int block;    // keys of a block
    const bool ranged;  // whether the range of visible keys is tested
};

struct AttentionStages {
    // Slots of the state: the two factors of the step at hand and what the softmax carries along. From
    // config.state_slots() on follow the outputs.
    enum Slot { old_factor, new_factor, row_sum, row_max };

    explicit AttentionStages(const AttentionConfig &config);

    Halide::Var row{"row"}, rb{"rb"}, c{"c"}, b{"b"}, sp{"sp"}, k{"k"}, kb{"kb"}, d{"d"}, x{"x"};
    Halide::Var u{"u"}, p{"p"}, kq{"kq"}, e{"e"}, ti{"ti"}, tj{"tj"}, s{"s"}, h{"h"}, task{"task"};

    PaddedRows q_padded{"q_padded"};      // (d, row, rb, c, b): scaled, zeros behind head_dim
    Halide::Func q_rows{"q_rows"};        // (d, row, rb, c, b): scaled
    TransposedTiles q_tiles{"q_tiles"};   // prefill
    Halide::Func q_lanes{"q_lanes"};      // prefill, (row, d, rb, c, b)
    Halide::Func row_range{"row_range"};  // (row, rb, b, sp): first visible key, end of the visible keys
    Halide::Func block_range{
        "block_range"};  // (rb, b, sp): first key of `full`, its steps; left steps, steps of `masked`
    BlockChain full, masked;
    Halide::Func state{"state"};  // (row, x, rb, c, b, sp)

    Halide::Func split_state{"split_state"};    // decode, (row, x, task): the state of each split, complete
    Halide::Expr num_tasks;                     // decode: a task is one value of (rb, c, b, sp), rb innermost
    Halide::Func split_max{"split_max"};        // decode, (s, h, b): of all splits of a row
    Halide::Func split_factor{"split_factor"};  // decode, (sp, s, h, b)
    Halide::Func merged{"merged"};              // decode, (x, s, h, b): the splits of a row as one
    Halide::RDom over_splits;

    Halide::Func inverse_sum{"inverse_sum"};  // prefill, (row, rb, c, b)
    Halide::Func out_lanes{"out_lanes"};      // prefill, (row, d, rb, c, b)
    TransposedTiles out_tiles{"out_tiles"};   // prefill
    Halide::Func out_rows{"out_rows"};        // prefill, (d, row, rb, c, b)
    Halide::Func lse_rows{"lse_rows"};        // prefill, (row, rb, c, b)
    Halide::Func out{"attention"};            // (d, h, s, b): out and lse. One Func, so that one loop nest makes both
};

// Fills `stages`, by reference: a copy would rename its Funcs.
void build_attention(const AttentionConfig &config, const AttentionInputs &in, AttentionStages &stages);

}  // namespace heed
