#pragma once
// The algorithm: named stages of blocked attention with an online softmax. Schedules may touch what this struct names,
// only that.
//
// A task is one block of query rows of one head: the unit of parallel work. A table (contract/fields.h: TaskField) says
// which rows and which keys, so that dense, ragged and paged batches run alike. Coordinates, the same in every stage:
//   row  query row in the block. Prefill: a query position; decode: a packed (position, head of the group) pair, so
//        that all heads of a group share k and v
//   t    task      sp  split of the keys (prefill has one)
//   k    key in a block      kb  block of keys      d  element of a head      x  slot of the state
//
// The keys that a block of rows may see form one range. Its middle, visible to all rows, goes through the chain `full`
// in blocks of kv_block without a test of the range; its two ends go through the chain `masked` in blocks of
// masked_block. Online softmax: Milakov and Gimelshein, arXiv 1805.02867; the blocked form: Dao et al., arXiv
// 2205.14135; splits of the keys merged at the end: Dao et al., "Flash-Decoding" (2023).

#include <string>
#include <vector>

#include "Halide.h"
#include "generators/attention/config.h"
#include "generators/attention/kv_source.h"
#include "generators/contract/attention_arguments.h"
#include "generators/contract/fields.h"

namespace heed {

#define HEED_EXPR_MEMBER(name, type) Halide::Expr name;

// What a kernel reads; dimensions innermost first: contract/attention_arguments.h.
struct AttentionInputs {
    Halide::Func q, mask, bias, bias_16, sink, alibi_slopes, tasks;
    ScoreBuffers score_buffers;
    KvSource k, v;
    PageTable page_table;
    Halide::Expr paged;  // whether the page table is used, else storage is strided
    HEED_ATTENTION(HEED_IGNORE, HEED_EXPR_MEMBER, HEED_IGNORE)
    Halide::Expr mask_stride, bias_stride, bias_16_stride;  // from key to key
    Halide::Expr num_tasks, q_batch, q_capacity, num_heads, num_kv_heads, num_slots, num_kv_pages;
    Halide::Expr head_dim, head_dim_v;
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

// One block of keys; (.., kb, t, sp) throughout. A stage that the config does not need is undefined.
struct PrefillBlock {
    Halide::Func seen_end;                   // f32 arithmetic, (): after the last key that some row sees
    Halide::Func d_end;                      // (k / key_tile): elements, all or none, to multiply
    Halide::Func mask_rows, bias_rows;       // (k, row): elements of the mask, of the bias as floats
    TransposedTiles mask_tiles, bias_tiles;  // the same by rows
    Halide::Func exponents;                  // (u): the largest exponent of a value, by lanes
    Halide::Func special_end;                // (): keys, none or all, whose values are multiplied with care
    Halide::Func number_end;                 // (): the part of `numbers` that the plain loop multiplies, or none
    Halide::RDom values, specials;

    explicit PrefillBlock(const std::string &suffix);
};

struct DecodeBlock {
    Halide::Func dot_tile;   // (u, row, k): scaled q . k, summed per lane u of d
    Halide::Func dots;       // (u, row, k): the same, copied from the registers of a tile
    Halide::Func sum_lanes;  // (u, row): the weights summed per lane u of the keys
    Halide::RDom lane_keys, over_u;

    explicit DecodeBlock(const std::string &suffix);
};

// Operands of dot products of bf16 and of matrix tiles.
struct Bf16Block {
    Halide::Func weight_pairs;  // (row, k / 2): the weights of two keys as bf16, and their sum
    Halide::Func v_pairs;       // (e = 2 d + k % 2, k / 2): values, those of two keys side by side
    TransposedTiles v_tiles;    // matrix tiles
    Halide::Func v_lanes;       // matrix tiles, (k / 2, d): values, those of two keys as one word
    Halide::RDom pairs;

    explicit Bf16Block(const std::string &suffix);
};

// Logits, softmax numerators and weighted values of one block of keys.
struct BlockChain {
    Halide::Func first_key;             // (): position of the block's first key
    Halide::Func slots;                 // (k): slot and page of a key, paged storage
    Halide::Func biases;                // (row, k): elements of the bias as floats
    Halide::Func visible;               // (row, k): whether the row may attend to the key; only where some row may not
    Halide::Func product;               // (row, k): scaled q . k
    Halide::Func raw_logits;            // (row, k): where logits are modified, before that
    Halide::Func logits, weights;       // (row, k)
    Halide::Func block_max, block_sum;  // (row)
    Halide::Func kept;                  // (row, k): visible and not dropped
    Halide::Func value_weights;         // (row, k): the weights times the scales of v
    Halide::Func value_tile;            // (row, d): weighted sum of values
    Halide::Func block_out;             // (row, d): the same, copied from the registers of a tile
    PaddedRows k_rows, v_rows;          // (d, k): used when the config copies k and v; bf16_tiles: k as stored
    Halide::RDom over_d, keys, numbers;
    Halide::RDom steps;  // (slot of the state, block of keys)
    PrefillBlock prefill;
    DecodeBlock decode;
    Bf16Block bf16;

    BlockChain(const std::string &suffix, int block, bool ranged);
    const std::string suffix;
    const int block;    // keys of a block
    const bool ranged;  // whether the range of visible keys is tested
};

struct PrefillStages {
    TransposedTiles q_tiles{"q_tiles"};
    Halide::Func q_lanes{"q_lanes"};                     // (row, d, t)
    Halide::Expr mask_dense, bias_dense, bias_16_dense;  // its keys are neighbours in memory
    Halide::Func out_lanes{"out_lanes"};                 // (row, d, t)
    TransposedTiles out_tiles{"out_tiles"};
    Halide::Func out_rows{"out_rows"};  // (d, row, t)
};

struct DecodeStages {
    Halide::Func split_state{"split_state"};    // (row, x, task): each split's state, complete; t innermost
    Halide::Expr num_split_tasks;               // values of (t, sp)
    Halide::Expr prefetched_keys;               // how far ahead rows of k and v are asked for
    Halide::Func split_max{"split_max"};        // (row, t): of all splits of a row
    Halide::Func split_factor{"split_factor"};  // (sp, row, t)
    Halide::Func merged{"merged"};              // (x, row, t): the splits of a row as one
    Halide::RDom over_splits;
};

struct AttentionStages {
    // Slots of the state: the two factors of the step at hand and what the softmax carries along. From
    // config.state_slots() on follow the outputs.
    enum Slot { old_factor, new_factor, row_sum, row_max };

    explicit AttentionStages(const AttentionConfig &config);

    Halide::Var row{"row"}, t{"t"}, sp{"sp"}, k{"k"}, kb{"kb"}, d{"d"}, x{"x"};
    Halide::Var u{"u"}, kq{"kq"}, e{"e"}, ti{"tile_i"}, tj{"tile_j"}, s{"s"}, h{"h"}, b{"b"}, task{"task"};

    Halide::Func fields{"fields"};            // (d, t): the task's line of the table
    PaddedRows q_padded{"q_padded"};          // (d, row, t): scaled, zeros after head_dim
    Halide::Func q_rows{"q_rows"};            // (d, row, t): scaled; with bf16_dots pairs of elements, not scaled
    Halide::Func row_range{"row_range"};      // (row, t, sp): first visible key, end of the visible keys
    Halide::Func block_range{"block_range"};  // (t, sp): first key of `full`, its steps; left steps, steps of `masked`,
                                              // end of the keys that some row sees
    BlockChain full, masked;
    // What a row can do and a problem may not ask for: tested once per block of keys.
    Halide::Expr softcap_on, mask_on, bias_on, bias_is_16;
    Halide::Func state{"state"};            // (row, x, t, sp)
    Halide::Func row_result{"row_result"};  // (row, t): factor of the output, lse; decode: and its divisor
    Halide::RDom results;                   // (row, task): where `out` is written
    Halide::Func out{"attention"};          // (d, h, s, b): out and lse. One Func, so that one loop nest makes both
    PrefillStages prefill;
    DecodeStages decode;
};

// Fills `stages`, by reference: a copy would rename its Funcs.
void build_attention(const AttentionConfig &config, const AttentionInputs &in, AttentionStages &stages);

}  // namespace heed
