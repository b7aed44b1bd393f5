#pragma once
// Every compile-time choice of an attention kernel, in two groups: what may change a bit of a result, and what may not.

#include <algorithm>
#include <string>

#include "generators/common/element_type.h"
#include "generators/contract/fields.h"
#include "heed/user_score.h"

namespace heed {

enum class Phase { prefill, decode };

struct AttentionConfig {
    // Changes results: what is computed, and the tree of the sums.
    Phase phase = Phase::prefill;
    int head_dim = 128;                       // elements of a q/k row, 1..640; 0 = given at run time
    int head_dim_v = 128;                     // elements of a v/out row, 1..640; 0 exactly when head_dim is 0
    ElementType dtype = ElementType::f32;     // of q, out and, if not f32, bias
    ElementType kv_dtype = ElementType::f32;  // of k and v: dtype or i8; f32: of copies of heads, widened once
    bool paged = false;                       // keys are found through a page table (or are in place: see kernel.h)
    bool has_bias = false, has_mask = false, has_softcap = false, has_alibi = false, has_dropout = false;
    ScoreMod score_mod;           // a user's own
    bool bf16_dots = false;       // q . k, where rows are lanes weights . v too, are dot products of pairs of bf16
    bool bf16_tiles = false;      // with bf16_dots there: of matrix tiles (AMX), whose operands are copies of k and v
    bool has_gqa = false;         // decode: a block of rows holds several heads of a group
    bool wide_group = false;      // decode: of more rows, for groups of many heads
    bool for_whole_keys = false;  // decode: where whole_keys pays
    bool in_warpgroups = false;   // prefill on CUDA: products are those of warpgroups, of sm_90 alone
    int row_block = 48;           // query rows that share one decision where key blocks begin
    int kv_block = 128;           // keys of one softmax step where all rows see all keys
    int masked_block = 16;        // the same where some row does not see some key
    int dot_lanes = 16;           // partial sums of a dot product where elements of a head are the lanes
    // Where rows are lanes, of a schedule that computes a step inside its loop: weights are relative to what the step
    // before has left, so that sums add up in place.
    bool carries_reference = true;

    // Changes speed only.
    int lanes = 16;          // floats of a vector register, and edge of the transposed tiles
    int key_tile = 8;        // keys of one register tile
    int value_tile = 8;      // prefill: values of d of one register tile
    int product_unroll = 1;  // prefill, blocks that all rows see: elements of d, or pairs, in one step of a tile
    int value_unroll = 1;    // prefill, blocks that all rows see: keys in one step of a tile
    int value_keys = 32;     // decode: keys of one visit to the accumulators of a tile of values
    int value_rows = 1;      // decode: rows of that tile
    int value_vectors = 1;   // decode: vectors along d of that tile, or the next smaller divisor of a row's
    int prefetch_keys = 0;   // decode: how far ahead rows of k and v are asked for, 0 = not
    int task_blocks = 1;     // decode: the most blocks of rows that a task has
    int whole_keys = 0;      // decode: the keys whose heads are read one after the other where these are neighbours in
                             // memory, so many values at once; 0: heads are read on their own

    static constexpr int max_block_logits = 16384;
    static constexpr int whole_keys_ahead = 8;  // in pages: how far ahead heads of whole keys are asked for

    bool any_head_dim() const { return head_dim == 0; }

    // Whether the lanes of a vector are query rows, not elements of a head.
    bool rows_are_lanes() const { return phase == Phase::prefill || wide_group; }

    // Whether rows may end within a vector: then copies of them are padded with zeros.
    bool pads_rows() const { return head_dim % lanes != 0 || head_dim_v % lanes != 0 || any_head_dim(); }

    // Whether rows of q do; its vectors hold pairs with bf16_dots.
    bool pads_queries() const { return any_head_dim() || (bf16_dots ? head_dim % (2 * lanes) != 0 : pads_rows()); }

    // Vector elements of a row of q.
    int query_elements() const { return bf16_dots ? head_dim / 2 : head_dim; }

    // Blocks of k and v pass through a copy in float. Where rows are lanes, each element is read once per register
    // tile, as a scalar: where it must be converted or found through a page table, that is done once per block. Decode
    // has one register tile of rows, and finds elements in pages itself.
    bool copies_k() const { return rows_are_lanes() ? converts_kv() : pads_rows(); }
    bool copies_v() const { return !bf16_dots && (rows_are_lanes() ? converts_kv() : pads_rows()); }
    // Where rows are lanes, v is read by whole register tiles: in place, its last element again after the end of a row.
    bool repeats_values() const { return rows_are_lanes() && !bf16_dots && !copies_v() && pads_rows(); }
    bool converts_kv() const { return !bf16_dots && ((paged && !wide_group) || kv_dtype != ElementType::f32); }
    // Decode with pages: the places of the keys of a block and of those asked for meanwhile are looked up together.
    bool looks_up_ahead() const { return paged && task_blocks > 1 && prefetch_keys > 0; }
    // Whether the keys of a visit to the values of whole keys are a loop: LLVM converts the 16-bit values of all keys
    // first where they are not, and has no registers left for the sums of four rows (1.2 to 1.4 times the time).
    bool loops_over_visits() const { return whole_keys > 1 && row_block > 1 && kv_dtype != ElementType::f32; }
    bool has_kv_scales() const { return kv_dtype == ElementType::i8; }

    bool adds_in_place() const { return rows_are_lanes() && carries_reference; }

    // The unit of rows that are padded: whole vectors, of pairs of bf16 where rows are lanes.
    int padded_unit() const { return rows_are_lanes() && bf16_dots ? 2 * lanes : lanes; }

    // Elements that scratch holds for a row of `length` elements (0: of any length): whole vectors.
    int padded(int length) const { return length == 0 ? max_head_dim : (length + lanes - 1) / lanes * lanes; }

    // Whether v, and k, are packed in the order in which tiles of bf16 products read them: dot products read whole rows
    // of k in place. With few rows weights stay floats: conversions of v are shared by few products there, and the
    // error of the output stays that of its own rounding. Whether once per head of keys and values, before all tasks,
    // as those of prefill share them; a task of decode packs each block that it reads.
    bool packs_kv() const { return bf16_dots && rows_are_lanes(); }
    bool packs_k() const { return packs_kv() && (bf16_tiles || any_head_dim()); }
    bool packs_first() const { return packs_kv() && !wide_group; }
    bool packs_in_steps() const { return packs_kv() && wide_group; }

    // Whether a task may take a part of its keys, the state of its rows staying where it is until the next part. With a
    // sweep two loops go through the keys.
    bool takes_parts() const { return bf16_tiles && packs_first() && !sweeps(); }

    // Whether a task of prefill asks, between its products, for its rows of out and the next task's of q. With matrix
    // tiles those steps do whose products are woven into the softmax.
    bool asks_for_rows() const {
        return phase == Phase::prefill && (!bf16_tiles || has_as_is_steps() || !changes_logits());
    }

    // Whether rows of packed v are read as whole vectors of words.
    bool packs_words() const { return any_head_dim() || head_dim_v % (2 * lanes) == 0; }

    // Keys in whose multiples a masked step of packed keys begins and ends: a matrix tile's, else a register tile's,
    // and those of all sums at once (Bf16Block::parts pairs).
    int masked_unit() const { return bf16_tiles ? packed_unit : std::max(key_tile, 8); }

    // Elements of the vectors in which rows of v are packed.
    int packed_lanes() const { return bf16_tiles || packs_words() ? lanes : lanes / 2; }

    // Elements of the chunks in which rows of k are packed: a tile's row, or the pairs of one step of a register tile.
    int packed_chunk() const { return bf16_tiles ? packed_unit : 8; }

    // Elements to which packed rows of k are padded: whole rows of a tile.
    int packed_row() const { return (head_dim + packed_unit - 1) / packed_unit * packed_unit; }

    // Whether rows of keys are whole chunks: packed as they are stored.
    bool has_whole_chunks() const { return !any_head_dim() && packed_row() == head_dim; }

    // Bytes of a packed block of keys and values, with any head dim of one element of all its rows; 0 where they are
    // not packed first.
    int packed_bytes() const {
        if (!packs_first()) return 0;
        return kv_block * 2 * (any_head_dim() ? 1 : (packs_k() ? packed_row() : 0) + head_dim_v);
    }

    // Elements of a state before its output: the slots of the softmax, where elements of a head are lanes a whole
    // vector of them and the sum of the weights by lanes.
    int state_slots() const { return packs_kv() ? 3 : adds_in_place() ? 2 : rows_are_lanes() ? 4 : 2 * dot_lanes; }

    bool has_score_mod() const { return score_mod.logit || score_mod.visible || score_mod.block_visible; }

    // Whether each logit reads an element of a tensor, or asks the user's function, to know if its key is seen.
    bool per_logit() const { return has_bias || has_mask || score_mod.visible; }

    bool has_bias_16() const { return has_bias && dtype != ElementType::f32; }

    // Whether whole blocks of a bias of bf16 whose keys are neighbours in memory are transposed as words of two keys:
    // by half as many shuffles. Xeon with AMX, 1024 tokens, 16 heads of 128: 0.92 of the time.
    bool reads_bias_pairs() const { return packs_first() && has_bias; }

    // Whether the mask of a block is transposed as words of four keys: squares of as many shuffles have four times as
    // many keys as those of bytes. Xeon with AMX: 100 causal tokens, 8 heads of 64 and 111, 0.87 of the time; a random
    // mask, 1024 tokens, 16 heads of 128, 0.94.
    bool reads_mask_words() const { return packs_first() && has_mask && masked_block % (4 * lanes) == 0; }

    int keys_of_mask_square() const { return reads_mask_words() ? 4 * lanes : lanes; }

    // Whether a sweep over the tensors of bias and mask tells first which blocks of keys are hidden, or seen as they
    // are.
    bool sweeps() const { return has_bias || has_mask; }

    // Keys of the sweep's vectors: of bytes, where a block has so many.
    int swept_keys() const { return kv_block >= 4 * lanes ? 4 * lanes : lanes; }

    // Whether some logit changes between q . k and the softmax.
    bool modifies_logits() const { return has_bias || has_softcap || has_alibi || has_kv_scales() || score_mod.logit; }
    // Whether a call may have something that changes or hides logits.
    bool has_logit_features() const { return has_bias || has_softcap || has_alibi || has_mask; }
    // Whether nothing but its scale and its key's place changes a logit, and nothing a weight.
    bool is_plain() const { return !has_logit_features() && !has_dropout && !has_score_mod(); }
    // Whether steps of their own, of packed keys, serve calls that change no logit and blocks that all rows see.
    bool has_as_is_steps() const { return packs_kv() && sweeps() && !has_score_mod(); }
    // Whether logits are more than scaled products in a range of keys.
    bool changes_logits() const { return modifies_logits() || has_mask || score_mod.visible; }

    // Whether a block of values is tested for NaN and infinities before rows that do not see all of its keys.
    bool tests_values() const { return rows_are_lanes() && !has_dropout && !has_kv_scales(); }

    // Whether the products are stored before they become logits.
    bool has_raw_logits() const { return (modifies_logits() || packs_kv()) && !bf16_tiles; }

    // Empty when valid; else a sentence with the parameter, its value and what is allowed.
    std::string error() const;
    // What error() says of blocks and tiles, for kernels of the CPU.
    std::string block_error() const;

private:
    std::string row_lanes_error() const;
    std::string head_lanes_error() const;
};

}  // namespace heed
