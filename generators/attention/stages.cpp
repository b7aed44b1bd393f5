// The named stages, and their first part: query rows, the range of keys that a block of rows sees.
#include "generators/attention/stages.h"

#include <algorithm>

#include "generators/attention/builder.h"
#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/lowering/bf16_dots.h"

namespace heed {

using namespace Halide;

AttentionBuilder::AttentionBuilder(const AttentionConfig &config, const AttentionInputs &in, AttentionStages &stages)
    : cfg(config), in(in), st(stages), packs_groups(config.phase == Phase::decode), row_lanes(config.rows_are_lanes()) {
    group_size = in.num_heads / in.num_kv_heads;
    head_dim = cfg.any_head_dim() ? in.head_dim : Expr(cfg.head_dim);
    head_dim_v = cfg.any_head_dim() ? in.head_dim_v : Expr(cfg.head_dim_v);
}

void AttentionBuilder::build() {
    st.softcap_on = logit_changes(in).cap_on();
    st.mask_on = in.mask_form != no_mask;
    st.bias_on = in.bias_form != no_bias;
    st.bias_is_16 = in.bias_form == bias_of_dtype;
    st.num_swept = in.num_swept;
    st.in_place = !in.paged;
    st.prefill.mask_dense = in.mask_stride == 1;
    st.prefill.bias_dense = in.bias_stride == 1;
    st.prefill.bias_16_dense = in.bias_16_stride == 1;
    st.prefill.reads_dense_16 = st.bias_is_16 && st.prefill.bias_16_dense;
    st.fields(st.d, st.t) = in.tasks(st.d, st.t);
    task_table = st.fields;
    range_table = st.block_range;
    row_block = cfg.task_blocks > 1 ? Expr(st.rb) : Expr(0);
    if (cfg.task_blocks > 1) {
        st.decode.heads(st.rb, st.t) = head_of_block();
        head_table = st.decode.heads;
    }
    define_queries();
    if (cfg.sweeps()) define_sweep();
    define_ranges();
    if (cfg.packs_first()) define_packed();
    Expr initial = select(st.x == slot_of(AttentionStages::row_max), lowest_logit(), 0.f);
    if (cfg.takes_parts()) {
        initial = select(is_first_part(), initial, undef<float>());
        st.kept = {st.state.name(), st.prefill.q_lanes.name()};
    }
    st.state(vars(of_state({st.row, st.x}))) = initial;
    if (cfg.has_as_is_steps()) st.chains.insert(st.chains.end(), {&st.as_is, &st.added});
    if (cfg.sweeps()) st.chains.push_back(&st.plain);
    st.chains.push_back(&st.full);
    // With packed keys the masked steps come first: the reference that they leave spares `full` a second look at a
    // block.
    st.chains.insert(cfg.packs_kv() ? st.chains.begin() : st.chains.end(), &st.masked);
    for (BlockChain *chain : st.chains) {
        define_first_key(*chain);
        define_slots(*chain);
        define_visibility(*chain);
        define_copies(*chain);
        define_products(*chain);
        define_logits(*chain);
        define_softmax(*chain);
        define_dropout(*chain);
        define_values(*chain);
        define_step(*chain);
    }
    if (!packs_groups) {
        define_prefill_outputs();
    } else if (row_lanes) {
        define_wide_outputs();
    } else {
        define_decode_outputs();
    }
}

Expr AttentionBuilder::num_rows() const { return packs_groups ? field(task_q_len) * group_size : field(task_q_len); }

Expr AttentionBuilder::blocks_per_task() const { return cfg.task_blocks > 1 ? Expr(in.blocks_per_task) : Expr(1); }

// Blocks after the last one repeat it.
Expr AttentionBuilder::head_of_block() const {
    if (head_table.defined()) return head_table(inside(row_block, blocks_per_task()), st.t);
    return cfg.task_blocks > 1 ? min(row_block, field(task_num_blocks) - 1) / field(task_head_blocks) : Expr(0);
}

Expr AttentionBuilder::first_row() const {
    if (cfg.task_blocks == 1) return field(task_first_row);
    Expr block = min(row_block, field(task_num_blocks) - 1);
    return field(task_first_row) + (block - head_of_block() * field(task_head_blocks)) * cfg.row_block;
}

Expr AttentionBuilder::packed_row(const Expr &row) const { return min(first_row() + row, num_rows() - 1); }

Expr AttentionBuilder::position(const Expr &row) const {
    return inside(packs_groups ? packed_row(row) / group_size : packed_row(row), in.max_q_len);
}

Expr AttentionBuilder::head(const Expr &row) const {
    Expr first = field(task_head) + head_of_block() * group_size;
    return inside(packs_groups ? first + packed_row(row) % group_size : first, in.num_heads);
}

Expr AttentionBuilder::kv_head() const { return inside(field(task_kv_head) + head_of_block(), in.num_kv_heads); }

Expr AttentionBuilder::padded(const Expr &length) const {
    return cfg.pads_rows() ? ceil_div(length, cfg.lanes) * cfg.lanes : length;
}

void AttentionBuilder::define_queries() {
    auto in_place = [&](const Expr &d) {
        Expr token = inside(field(task_first_q) + position(st.row), in.q_capacity);
        Expr stored = in.q(d, head(st.row), token, inside(field(task_q_batch), in.q_batch));
        return cfg.bf16_dots ? stored : to_float(cfg.dtype, stored) * (in.scale * log16_e);
    };
    if (cfg.pads_queries()) st.q_padded.define(vars(of_rows({st.d, st.row})), head_dim, cfg.padded_unit(), in_place);
    auto element = [&](const Expr &d) {
        return cfg.pads_queries() ? Expr(st.q_padded.rows(of_rows({d, st.row}))) : in_place(d);
    };
    st.q_rows(vars(of_rows({st.d, st.row}))) =
        cfg.bf16_dots ? bf16_pair(element(2 * st.d), element(2 * st.d + 1)) : element(st.d);
    if (row_lanes) {
        st.prefill.q_lanes(st.row, st.d, st.t) = st.prefill.q_tiles.define(cfg.lanes, st.q_rows, st.row, st.d, {st.t});
    }
}

// The key that the query at position `i` of its sequence sees first, and the one after the last that it sees.
std::pair<Expr, Expr> AttentionBuilder::seen_by(const Expr &i) const {
    Expr kv_len = field(task_kv_len);
    Expr split_begin = packs_groups ? st.sp * in.split_len : Expr(0);
    Expr split_end = packs_groups ? min(split_begin + in.split_len, kv_len) : kv_len;
    return {max(first_visible(i, field(task_visible_begin)), split_begin),
            min(end_visible(i, field(task_visible_end), kv_len), split_end)};
}

// As far as positions tell. Visibility moves with the position, which grows with the row. Where a task may have several
// blocks of rows, those of a sequence go through the same blocks of keys, however they are distributed: their results
// do not depend on it.
AttentionBuilder::Range AttentionBuilder::seen_by_position() const {
    const bool one_block = cfg.task_blocks == 1;
    const auto first = seen_by(one_block ? position(0) : Expr(0)),
               last = seen_by(one_block ? position(cfg.row_block - 1) : max(field(task_q_len), 1) - 1);
    Expr kv_len = field(task_kv_len);
    Expr split_end = packs_groups ? min((st.sp + 1) * in.split_len, kv_len) : kv_len;
    Range range;
    range.seen_begin = min(first.first, split_end);
    range.seen_end = max(last.second, range.seen_begin);
    range.full_begin = clamp(last.first, range.seen_begin, range.seen_end);
    range.full_end = first.second;
    return range;
}

void AttentionBuilder::define_ranges() {
    const auto seen = seen_by(position(st.row));
    st.row_range(vars(of_state({st.row}))) = {seen.first, seen.second};
    Expr swept = row_lanes && cfg.sweeps() ? inside(field(task_swept), in.num_swept) : Expr(st.t);
    st.block_range(st.t, st.sp) = blocks_of(swept, true);
}

// `swept`: where the sweep's results are; `classed`: those of blocks too.
Tuple AttentionBuilder::blocks_of(const Expr &swept, bool classed) const {
    Range range = seen_by_position();
    if (cfg.sweeps()) range = narrowed(range, swept);
    // Steps over packed keys are whole blocks of them, or whole parts of a block.
    if (cfg.packs_kv()) range.full_begin = ceil_div(range.full_begin, cfg.kv_block) * cfg.kv_block;
    Expr full = max(range.full_end - range.full_begin, 0) / cfg.kv_block, seen_units;
    if (cfg.packs_kv()) {
        const auto aligned = [&](int unit) {
            return select(range.seen_begin < range.seen_end, range.seen_begin / unit * unit, range.seen_end);
        };
        seen_units = aligned(cfg.masked_unit());
        range.seen_begin = aligned(cfg.masked_block);
        range.full_begin = select(full > 0, range.full_begin, range.seen_begin);
    }
    Expr left = ceil_div(range.full_begin - range.seen_begin, cfg.masked_block);
    Expr right = ceil_div(range.seen_end - (range.full_begin + full * cfg.kv_block), cfg.masked_block);
    Expr masked = left + right;
    if (cfg.takes_parts()) masked = select(is_first_part(), masked, 0);
    std::vector<Expr> parts{range.full_begin, full, left, masked, range.seen_end};
    if (cfg.takes_parts()) {
        Expr end = range.full_begin + full * cfg.kv_block, first = max(range.full_begin, field(task_part_begin));
        parts.insert(parts.end(), {first, max(min(end, field(task_part_end)) - first, 0) / cfg.kv_block});
    }
    if (cfg.sweeps()) {
        const auto [plain, mixed] = steps_by_class(range, full, swept);
        parts.insert(parts.end(), {plain, mixed});
    }
    if (cfg.packs_kv()) {
        if (cfg.sweeps()) parts.insert(parts.end(), {0, 0});
        if (cfg.has_as_is_steps()) {
            Expr as_is = keeps_logits() && parts[mixed_steps] == 0, all = parts[plain_steps];
            Expr adds = Internal::const_false(), mixed = parts[mixed_steps];
            if (classed) adds = !as_is && keeps_logits() && (mixed == 0 || least_class(swept) != hidden_block);
            parts[as_is_steps] = select(as_is, all, 0);
            parts[added_steps] = select(adds, max(all, mixed), 0);
            parts[plain_steps] = select(as_is || adds, 0, all);
            parts[mixed_steps] = select(adds, 0, mixed);
        }
        parts.push_back(seen_units);
    }
    return Tuple(parts);
}

// No step of `full` exists unless the keys fill a block: the clamp makes any step safe.
Expr AttentionBuilder::first_key(const BlockChain &chain, const Expr &step) const {
    Expr behind_full = range(full_begin) + range(full_steps) * cfg.kv_block, left = range(left_steps);
    if (cfg.packs_kv() && !chain.ranged) {
        return range(cfg.takes_parts() ? part_begin : full_begin) + step * cfg.kv_block;
    }
    Expr of_masked = (step - left) * cfg.masked_block + select(step < left, range(full_begin), behind_full);
    if (cfg.packs_kv()) return max(of_masked, range(first_unit()));
    return chain.ranged ? of_masked
                        : max(min(range(full_begin) + step * cfg.kv_block, in.max_kv_len - cfg.kv_block), 0);
}

void AttentionBuilder::define_first_key(BlockChain &chain) {
    Expr first = first_key(chain, st.kb);
    if (has_classes(chain)) {
        Expr found = row_lanes ? cast<int>(st.sweep.classes(st.kb, inside(field(task_swept), in.num_swept), st.sp))
                               : class_of_block(chain.sights, first);
        chain.first_key(vars(in_step({}))) = {first, select(range(mixed_steps) > 0, found, plain_block)};
    } else if (reads_seen(chain)) {
        // The first step of the left end may begin before the first key; its keys from there on are read.
        Expr begin = max(first, 0);
        chain.first_key(vars(in_step({}))) = {begin, min(range(seen_end), first + chain.block) - begin};
    } else if (cfg.packs_kv() && chain.ranged) {
        Expr in_block = chain.block - first % chain.block;
        chain.first_key(vars(in_step({}))) = {first, min(range(seen_end) - first, in_block)};
    } else {
        chain.first_key(vars(in_step({}))) = first;
    }
}

Expr AttentionBuilder::all_see(const BlockChain &chain) const {
    Expr begin = first_key(chain), end = begin + seen_keys(chain);
    return seen_by(position(cfg.row_block - 1)).first <= begin && end <= seen_by(position(0)).second;
}

Expr AttentionBuilder::key_position(const BlockChain &chain, const Expr &k) const { return first_key(chain) + k; }

// Paged storage looks each key up once per block, for all rows and for both k and v.
void AttentionBuilder::define_slots(BlockChain &chain) {
    if (!cfg.paged || (cfg.packs_first() && cfg.packs_k())) return;
    // After the end, where no table entry may be read, this is the last key.
    Expr pos = clamp(key_position(chain, st.k), 0, max(field(task_kv_len), 1) - 1);
    chain.slots(vars(in_step({st.k}))) = looked_up(pos, field(task_sequence), field(task_first_key),
                                                   field(task_kv_batch), {in.num_slots, in.num_kv_pages});
}

// The slot and page of the key at `pos` of a sequence, in pages or in place, where there are as many as `end` says.
Tuple AttentionBuilder::looked_up(const Expr &pos, const Expr &sequence, const Expr &first_key, const Expr &kv_batch,
                                  const KeySlot &end) const {
    KeySlot paged = in.page_table.slot(pos, inside(sequence, in.batch));
    Expr in_place = first_key + select(in.paged, 0, pos);  // in the buffer, where nothing reads it too
    return {select(in.paged, paged.slot, inside(in_place, end.slot)),
            select(in.paged, paged.page, inside(kv_batch, end.page))};
}

KeySlot AttentionBuilder::slot(const BlockChain &chain, const Expr &k, bool is_seen) const {
    if (cfg.paged) {
        Tuple found = chain.slots(in_step({k}));
        return {inside(found[0], in.num_slots), inside(found[1], in.num_kv_pages)};
    }
    return slot_in_place(chain, k, is_seen || !chain.ranged);
}

// Of keys that no page table places.
KeySlot AttentionBuilder::slot_in_place(const BlockChain &chain, const Expr &k, bool is_there) const {
    Expr first = field(task_first_key) + first_key(chain);
    return {is_there ? trusted_slot(first, k, in.num_slots) : clamped_slot(first, k, in.num_slots),
            inside(field(task_kv_batch), in.num_kv_pages)};
}

PrefillBlock::PrefillBlock(const std::string &suffix)
    : mask_rows("mask_rows" + suffix), bias_rows("bias_rows" + suffix), mask_tiles("mask_tiles" + suffix),
      bias_tiles("bias_tiles" + suffix), bias_pairs("bias_pairs" + suffix), exponents("exponents" + suffix),
      nonfinite_end("nonfinite_end" + suffix), number_end("number_end" + suffix), all_seen("all_seen" + suffix),
      value_sums("value_sums" + suffix), reference("reference" + suffix) {}

DecodeBlock::DecodeBlock(const std::string &suffix)
    : dot_tile("dot_tile" + suffix), dots("dots" + suffix), sum_lanes("sum_lanes" + suffix) {}

Bf16Block::Bf16Block(const std::string &suffix)
    : weight_pairs("weight_pairs" + suffix), v_numbers("v_numbers" + suffix), max_parts("max_parts" + suffix),
      sum_parts("sum_parts" + suffix), exact_sum("exact_sum" + suffix), reference_sizes("reference_sizes" + suffix),
      again_end("again_end" + suffix) {}

PackedBlocks::PackedBlocks(const std::string &suffix)
    : k("packed_k" + suffix), v_rows("v_rows_packed" + suffix), v_tiles{TransposedTiles("packed_v_even" + suffix),
                                                                        TransposedTiles("packed_v_odd" + suffix)},
      v("packed_v" + suffix), exponents("packed_exponents" + suffix), nonfinite("packed_nonfinite" + suffix) {}

BlockChain::BlockChain(const std::string &suffix, int block, bool ranged, bool tested, Changes changes)
    : first_key("first_key" + suffix), slots("slots" + suffix), biases("biases" + suffix), visible("visible" + suffix),
      product("product" + suffix), raw_logits("raw_logits" + suffix), logits("logits" + suffix),
      weights("weights" + suffix), block_max("block_max" + suffix), block_sum("block_sum" + suffix),
      kept("kept" + suffix), value_weights("value_weights" + suffix), value_tile("value_tile" + suffix),
      block_out("block_out" + suffix), k_rows("k_rows" + suffix), v_rows("v_rows" + suffix), prefill(suffix),
      decode(suffix), bf16(suffix), packed(suffix), sights(suffix), suffix(suffix), block(block), ranged(ranged),
      tested(tested), as_is(changes == Changes::none), added(changes == Changes::added) {}

AttentionStages::AttentionStages(const AttentionConfig &config)
    : as_is("_as_is", config.kv_block, false, false, BlockChain::Changes::none),
      added("_added", config.kv_block, false, true, BlockChain::Changes::added),
      plain("_plain", config.kv_block, false, false), full("_full", config.kv_block, false, true),
      masked("_masked", config.masked_block, true, true) {}

std::string AttentionStages::loop(const BlockChain &chain, const RVar &over) const {
    const auto place = std::find(chains.begin(), chains.end(), &chain) - chains.begin();
    return state.name() + ".s" + std::to_string(place + 1) + "." + over.name();
}

void build_attention(const AttentionConfig &config, const AttentionInputs &in, AttentionStages &stages) {
    AttentionBuilder(config, in, stages).build();
    stages.decode.prefetched_keys =
        config.paged ? select(in.page_size > 0, 0, config.prefetch_keys) : Expr(config.prefetch_keys);
    Expr heads_first = in.k_head_stride < in.k_slot_stride && in.v_head_stride < in.v_slot_stride;
    Expr rows_of_head = in.num_heads / in.num_kv_heads * in.max_q_len;
    Expr most_blocks = config.paged ? select(in.page_size > 0, whole_key_blocks, 1) : Expr(1);
    stages.decode.reads_whole_keys = heads_first && rows_of_head <= most_blocks * config.row_block;
    stages.decode.blocks_at_once = select(stages.decode.reads_whole_keys, in.blocks_per_task, 1);
}

}  // namespace heed
