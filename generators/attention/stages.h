#pragma once
// The algorithm: named stages of blocked attention with an online softmax. Schedules may touch what this struct names,
// only that.
//
// A task is one block of query rows of one head: the unit of parallel work. A table (contract/fields.h: TaskField) says
// which rows and which keys, so that dense, ragged and paged batches run alike. Coordinates, the same in every stage:
//   row  query row in the block. Prefill: a query position; decode: a packed (position, head of the group) pair, so
//        that all heads of a group share k and v
//   rb   decode: block of rows of the task; a task may have several, of several heads: they take turns with each block
//        of keys, so that these are read from memory once and in their order
//   t    task      sp  split of the keys (prefill has one)
//   k    key in a block      kb  block of keys      d  element of a head      x  slot of the state
//   e, c  packed k: element in a chunk of 32, chunk of a row      p, c  packed v: pair of keys in a chunk of 32, chunk
//
// The keys that a block of rows may see form one range. Its middle, visible to all rows, goes through the chain `full`
// in blocks of kv_block without a test of the range; its two ends go through the chain `masked` in blocks of
// masked_block. A mask, and a bias of minus infinity, narrow the range: a sweep over their elements comes first. In the
// middle it tells the blocks apart: `full` leaves out what no row sees, and what all rows see as if there were neither
// mask nor bias goes through the chain `plain`, before. With packed keys, where that is all blocks and the call changes
// no logit, `as_is` has them; where no block is hidden and nothing but a bias changes logits, `added` has those of
// both. Online softmax: Milakov and Gimelshein, arXiv 1805.02867; the blocked form: Dao et al., arXiv 2205.14135;
// splits of the keys merged at the end: Dao et al., "Flash-Decoding" (2023).

#include <string>
#include <vector>

#include "Halide.h"
#include "generators/attention/config.h"
#include "generators/attention/kv_source.h"
#include "generators/attention/logits.h"
#include "generators/attention/merged_splits.h"
#include "generators/attention/transposed_tiles.h"
#include "generators/contract/attention_arguments.h"
#include "generators/contract/fields.h"

namespace heed {

#define HEED_FUNC_MEMBER(name, ...) Halide::Func name;

// What a kernel reads; dimensions innermost first: contract/attention_arguments.h.
struct AttentionInputs {
    Halide::Func q, mask, bias, bias_16, sink, tasks;
    HEED_HEAD_INPUTS(HEED_FUNC_MEMBER)
    Halide::Func key_blocks, swept_tasks;
    ScoreBuffers score_buffers;
    KvSource k, v;
    PageTable page_table;
    Halide::Expr paged;  // whether the page table is used, else storage is strided
    HEED_ATTENTION(HEED_IGNORE, HEED_EXPR_MEMBER, HEED_IGNORE)
    Halide::Expr mask_stride, bias_stride, bias_16_stride;  // from key to key
    Halide::Expr num_tasks, num_key_blocks, num_swept, q_batch, q_capacity, num_heads, num_kv_heads, num_slots,
        num_kv_pages, num_v_slots, num_v_pages;  // those of v where a copy of k takes its place
    Halide::Expr head_dim, head_dim_v;
};

// k, and v, in the order in which products of bf16 read them. Prefill: (.., block, head), made once per head of keys
// and values and shared by all blocks of rows of all heads of its group; in blocks of kv_block keys: contract/fields.h,
// KeyBlockField. Decode: (.., kb, t, sp), the block of a step. After the last key of a sequence the last one is taken.
struct PackedBlocks {
    Halide::Var block{"block"}, head{"kv_head"};
    Halide::Func k_slots{"k_slots"}, v_slots{"v_slots"};  // (k, block): slot and page, paged storage; prefill
    Halide::Func k;                                       // (e, k, c, ..): element e of chunk c, zeros after the last
    Halide::RDom over_d;                                  // of rows that are no whole number of chunks
    PaddedRows v_rows;                                    // (d, k, ..): of rows of any length
    TransposedTiles v_tiles[2];                           // of even and of odd elements; or of all
    // Elements d of two keys, as a pair. Matrix tiles: (p, d, c, ..), of the keys 32 c + 2 p and 32 c + 2 p + 1; dot
    // products: (d / 2, d % 2, p, ..), of the keys 2 p and 2 p + 1.
    Halide::Func v;
    Halide::Func exponents;  // (u, ..): sums that tell where an exponent is full, by lanes
    Halide::Func nonfinite;  // (..): whether some value of the block is NaN or infinite
    Halide::RDom over_v;
    Halide::Expr num_blocks, num_heads;
    Halide::Expr chunks, values;  // of a row of k, and elements of a row of v

    explicit PackedBlocks(const std::string &suffix);
};

// One block of keys; (.., kb, t, sp) throughout. A stage that the config does not need is undefined.
struct PrefillBlock {
    Halide::Func mask_rows, bias_rows;       // (k, row): elements of the mask, of the bias as floats
    TransposedTiles mask_tiles, bias_tiles;  // the same by rows; words where AttentionConfig::reads_mask_words()
    Halide::RDom mask_lines, mask_keys;      // (key of a line, line); single keys, where lines cannot be read
    TransposedTiles bias_pairs;              // words of two keys by rows (AttentionConfig::reads_bias_pairs)
    Halide::Func exponents;                  // (u): the largest exponent of a value, by lanes
    Halide::Func nonfinite_end;              // (): keys, none or all, of a block with values that are NaN or infinite
    Halide::Func number_end;                 // (): the part of `numbers` that the plain loop multiplies, or none
    Halide::Func all_seen;                   // (u): whether the rows see all keys of the block, by lanes
    Halide::RDom values, nonfinites, places;
    Halide::Func value_sums;  // (row, d): of a block with NaN or infinities, by its keys
    Halide::RDom with_sums;
    // (row): what weights are relative to, and what that multiplies the sums before this block by; with bf16 also in
    // units of fixed point. It stays where it is until a logit is far above it, so that products add up in place.
    Halide::Func reference;
    // It moves to a logit that is this much above it, in log16: weights are up to 16, which leaves values up to 2^124.
    static constexpr int slack = 1;

    explicit PrefillBlock(const std::string &suffix);
    // See AttentionConfig::reads_bias_pairs.
    bool reads_bias_pairs() const { return !bias_pairs.steps.empty(); }
};

struct DecodeBlock {
    Halide::Func dot_tile;   // (u, row, k): scaled q . k, summed per lane u of d
    Halide::Func dots;       // (u, row, k): the same, copied from the registers of a tile
    Halide::Func sum_lanes;  // (u, row): the weights summed per lane u of the keys
    Halide::RDom lane_keys;

    explicit DecodeBlock(const std::string &suffix);
};

// What the rows of a task see of vectors of keys, by what may hide them.
struct KeySights {
    struct Source {
        Halide::Func words;  // (u, .., t, sp)
        Halide::RDom over;   // (row, chunk of keys)

        explicit Source(const std::string &name) : words(name) {}
    };
    Source mask;           // the least and the most byte of the rows
    Source bias, bias_16;  // not 0: some row is not hidden; some row has a bias
    Halide::Expr bias_read;

    explicit KeySights(const std::string &suffix);
    std::vector<Source *> defined();
};

// What the rows see of a block of keys.
struct BlockSights {
    KeySights keys;                     // (u, kb, t, sp)
    Halide::Func some_seen, all_as_is;  // (kb, t, sp): 1: some row sees some key; all rows see all keys, without a bias

    explicit BlockSights(const std::string &suffix);
};

enum BlockClass { hidden_block, mixed_block, plain_block };

// The sweep over the keys of a task, in chunks of swept_keys. In prefill it is made once for all heads that share mask
// and bias, with the classes of the blocks of `full`: t is a line of swept_tasks then.
struct MaskSweep {
    // Keys that some row sees, that all rows see without a bias; first keys are negated, so that all are maxima. Then
    // how many keys all rows see without a bias, whether the sweep looked, and whether at the bias too.
    enum Result {
        seen_first,
        seen_last,
        as_is_first,
        as_is_last,
        num_ends,
        as_is_count = num_ends,
        looked,
        looked_at_bias,
        num_results
    };
    static_assert(num_results == num_sweep_results);

    Halide::Func fields{"swept_fields"};    // (d, t): prefill: of the line's task
    Halide::Func seen_range{"seen_range"};  // (t, sp): first key that some row may see by its position, end of the keys
    Halide::Expr mask_read;                 // whether the mask is read
    Halide::Func bias_read{"bias_read"};    // (t, sp): whether the bias is
    Halide::Func num_chunks{"num_chunks"};  // (t, sp)
    KeySights sights{"_swept"};             // (u, kb = chunk, t, sp)
    Halide::Func lane_ends{"lane_ends"};    // (u, e = End or as_is_count, t, sp)
    Halide::Func ends{"ends"};              // (e, t, sp): the same of all lanes
    Halide::Func as_is_keys{"as_is_keys"};  // (t, sp): as_is_count
    Halide::Func results{"swept"};          // (e = Result, t, sp)
    Halide::RDom chunks, over_u;

    Halide::Func class_fields{"class_fields"};  // prefill, as `fields`
    Halide::Func block_range{"swept_blocks"};   // (t, sp): see AttentionStages
    BlockSights block{"_swept_block"};
    Halide::Func classes{"classes"};  // (kb, t, sp): BlockClass of the blocks of `full`, where it has steps; with
                                      // `added`, after the last one the least of them
    Halide::RDom steps, all_steps;
};

// Operands of products of bf16, where rows are lanes.
struct Bf16Block {
    Halide::Func weight_pairs;  // (row, k / 2): the weights of two keys as bf16
    Halide::Func v_numbers;     // matrix tiles where keys may be hidden: of packed.v, without its NaN and infinities
    Halide::RDom pairs;
    Halide::Func max_parts, sum_parts;  // (row, x): of every parts-th key, of every parts-th pair
    Halide::RDom part_keys;
    Halide::Func exact_sum;  // (row): of weights that are not rounded, where the call wants lse
    Halide::RDom exact;
    // Where the reference of a row is huge, its weights are computed again, from exact differences.
    Halide::Func reference_sizes;  // (u): the largest of the rows, by lanes
    Halide::Func again_end;        // (): pairs of the block, all or none
    Halide::RDom sized_rows, again, exact_again;
    static constexpr int parts = 4;  // sums at once: an addition takes four cycles and more

    // A reference moves when a logit is this much above it, in log16: weights up to 2^8 round as those up to 1 do, and
    // 2^31 of them do not overflow a sum. A logit that moves it has a weight of at least large_weight, a bf16.
    static constexpr float reference_slack = 2;
    static constexpr uint16_t large_weight = 0x4380;
    // The bits of 2^20, in log16. What weights are relative to is then rounded to 2^-4 and more, but the logit in an
    // FMA is not; and from 2^103 on its fixed point overflows a float.
    static constexpr int32_t huge_reference = 0x49800000;
    // Whether the scale of the logits, times the unit of the fixed point, is a number.
    static Halide::Expr fits_unit(const Halide::Expr &scale) { return Halide::abs(scale) < 0x1p96f; }

    explicit Bf16Block(const std::string &suffix);
};

// Logits, softmax numerators and weighted values of one block of keys.
struct BlockChain {
    Halide::Func first_key;             // (): position of the block's first key; `full` with a sweep: its BlockClass;
                                        // `masked` in prefill: the number of keys up to the last one that some row
                                        // sees
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
    PaddedRows k_rows, v_rows;          // (d, k): used when the config copies k and v
    Halide::RDom over_d, keys, numbers;
    Halide::RDom steps;  // (slot of the state, block of keys), in decode also (block of rows)
    PrefillBlock prefill;
    DecodeBlock decode;
    Bf16Block bf16;
    PackedBlocks packed;  // where k and v are packed, but not first
    BlockSights sights;   // decode: prefill has its class from the sweep

    enum class Changes { all, added, none };
    BlockChain(const std::string &suffix, int block, bool ranged, bool tested, Changes changes = Changes::all);
    // The loop of `state` whose steps compute what a block of keys is for a block of rows.
    Halide::RVar block_loop() const { return steps.dimensions() > 2 ? steps.z : steps.y; }
    const std::string suffix;
    const int block;    // keys of a block
    const bool ranged;  // whether the range of visible keys is tested
    const bool tested;  // whether mask and bias are
    const bool as_is;   // whether logits are scaled products
    const bool added;   // whether they are sums of that and a bias; steps take blocks of every class
    // Whether the call changes no logit but by a bias: neither softcap nor ALiBi nor a block's class is looked at.
    bool only_adds() const { return as_is || added; }
};

struct PrefillStages {
    TransposedTiles q_tiles{"q_tiles"};
    Halide::Func q_lanes{"q_lanes"};                     // (row, d, t)
    Halide::Expr mask_dense, bias_dense, bias_16_dense;  // its keys are neighbours in memory
    Halide::Expr reads_dense_16;                         // the bias has 16 bits, and these are neighbours
    Halide::Func out_lanes{"out_lanes"};                 // (row, d, t)
    TransposedTiles out_tiles{"out_tiles"};
    Halide::Func out_rows{"out_rows"};  // (d, row, t)
};

// Merges the splits of (row, rb, t); where rows are lanes there is no rb, and `merged` has them innermost.
struct DecodeStages : MergedSplits {
    Halide::Func heads{"block_heads"};        // (rb, t): the block's head, from the task's first one; task_blocks > 1
    Halide::Func split_state{"split_state"};  // (row, x, rb, task): each split's state, complete; sp innermost
    Halide::Expr num_split_tasks;             // values of (t, sp)
    Halide::Expr blocks_per_task;             // values of rb
    Halide::Expr prefetched_keys;             // how far ahead rows of k and v are asked for
    // Whether heads are nearer than keys in memory, and one block of rows reads each, in pages whole_key_blocks.
    Halide::Expr reads_whole_keys;
    Halide::Expr blocks_at_once;    // with whole_keys: blocks of rows that go through a block of keys together
    Halide::Func merged{"merged"};  // (x, row, rb, t): the splits of a row as one
    Halide::Func merged_fields{"merged_fields"};  // (d, t): the line of the table, where rows are lanes
};

struct AttentionStages {
    // Slots of the state: the two factors of the step at hand and what the softmax carries along. Sums that add up in
    // place have no factors, and with packed keys a sum of weights that are not rounded. From config.state_slots() on
    // follow the outputs.
    enum Slot { old_factor, new_factor, row_sum, row_max, exact_sum };
    static int place(const AttentionConfig &config, Slot slot) { return slot - (config.adds_in_place() ? row_sum : 0); }

    explicit AttentionStages(const AttentionConfig &config);

    // The name that lowering gives a loop of `state` over steps of a chain.
    std::string loop(const BlockChain &chain, const Halide::RVar &over) const;

    Halide::Var row{"row"}, rb{"row_block"}, t{"t"}, sp{"sp"}, k{"k"}, kb{"kb"}, d{"d"}, x{"x"};
    Halide::Var u{"u"}, kq{"kq"}, e{"e"}, c{"chunk"}, p{"pair"}, ti{"tile_i"}, tj{"tile_j"}, s{"s"}, h{"h"}, b{"b"},
        task{"task"};

    Halide::Func fields{"fields"};            // (d, t): the task's line of the table
    PaddedRows q_padded{"q_padded"};          // (d, row, t): scaled, zeros after head_dim
    Halide::Func q_rows{"q_rows"};            // (d, row, t): scaled; with bf16_dots pairs of elements, not scaled
    Halide::Func row_range{"row_range"};      // (row, t, sp), in decode (row, rb, t, sp): first visible key, end of
                                              // the visible keys
    Halide::Func block_range{"block_range"};  // (t, sp): first key of `full`, its steps; left steps, steps of `masked`,
                                              // end of the keys that some row sees; with a sweep steps of `plain`,
                                              // of `full`; of packed keys steps of `as_is` and
                                              // of `added`, the first key that is read
    PackedBlocks packed{""};                  // when the config packs k and v first
    MaskSweep sweep;
    BlockChain as_is, added, plain, full, masked;
    std::vector<BlockChain *> chains;  // those in use, as `state` goes through them
    // What a kernel can do and a problem may not ask for: tested once per block of keys.
    Halide::Expr softcap_on, mask_on, bias_on, bias_is_16, in_place;
    Halide::Expr num_swept;                 // lines of the sweep
    Halide::Func state{"state"};            // (row, x, t, sp)
    std::vector<std::string> kept;          // where tasks take parts of their keys: Funcs that stay from part to part
    Halide::Func row_result{"row_result"};  // (row, t): factor of the output, lse; decode: and its divisor
    Halide::RDom results;                   // (row, task): where `out` is written
    Halide::Func out{"attention"};          // (d, h, s, b): out and lse. One Func, so that one loop nest makes both
    PrefillStages prefill;
    DecodeStages decode;
};

// Fills `stages`, by reference: a copy would rename its Funcs.
void build_attention(const AttentionConfig &config, const AttentionInputs &in, AttentionStages &stages);

}  // namespace heed
