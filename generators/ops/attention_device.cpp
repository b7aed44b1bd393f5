#include "generators/ops/attention_device.h"

#include "generators/common/ceil_div.h"
#include "generators/lowering/carried.h"
#include "generators/lowering/skip_blocks.h"
#include "generators/ops/shared_counters.h"

namespace heed {

using namespace Halide;

namespace {

Expr steps_of(const Expr &length, const ProductTile &tile) { return ceil_div(length, tile.width * tile.chunks); }

Expr is_of_chunks(const Expr &length, ElementType type) { return length % chunk_of(type) == 0; }

// 16^x, of CUDA.
Expr power_of_16(const Expr &x) { return exp2_on_device(x * 4.f); }

}  // namespace

AttentionDevice::AttentionDevice(const AttentionConfig &config, const Tile &tile)
    : DeviceScores(config), tile(tile), steps(0, ceil_div(max_kv_len, tile.products.columns), "steps"),
      over_columns(tile.in_fragments ? RDom(0, 2, 0, tile.keys_of_row() / 8, "over_columns")
                                     : RDom(0, tile.products.columns / tile.lanes, "over_columns")),
      over_keys(0, tile.chunk / tile.parts, 0, tile.products.columns / tile.chunk, "over_keys"),
      over_counters(0, tile.in_fragments ? tile.keys_of_row() / 16 : 0, "over_counters"),
      over_uncounted(0, 2, 0, select(shares_counters(max_kv_len), 0, tile.keys_of_row() / 8), "over_uncounted"),
      over_pairs(0, 2, 0, tile.columns / 8, "over_pairs"),
      over_searched(0, ceil_div(max_kv_len, tile.products.columns * searchers), "searched"),
      all(0, tile.columns, 0, tile.queries(), 0, num_blocks(), "all"),
      faults(0, select(page_size > 0 && is_given(device_status), max_kv_len, 0), 0, args.batch, "faults"),
      product(tile.products, head_dim, tile.in_fragments ? Expr(1) : steps_of(head_dim, tile.products)) {
    const std::vector<OutputType> types = output_types();
    Var h{"h"}, token{"token"}, batch{"batch"};
    named(d, h, token, batch) = Tuple(undef(types[0].type), undef(types[1].type));
    set_outputs(named);
    std::vector<Expr> all_fields;
    for (int n = 0; n < sequence_padding; n++) all_fields.push_back(field(static_cast<SequenceField>(n), sequence));
    fields(sequence) = Tuple(all_fields);
    define_places();
    define_logits();
    tile.in_fragments ? define_softmax_of_fragments() : define_softmax();
    define_values();
    define_results();
    add_rows();
    if (config.paged) add_faults();
}

// ---- Where rows and keys are
Expr AttentionDevice::blocks_of_head() const { return ceil_div(max_q_len * heads_of_row(), tile.queries()); }
Expr AttentionDevice::heads_of_row() const { return config.has_gqa ? num_heads / num_kv_heads : 1; }
Expr AttentionDevice::num_blocks() const {
    return args.batch * (config.has_gqa ? args.num_splits * num_kv_heads : num_heads) * blocks_of_head();
}

// Blocks of one head follow each other, so that they share its keys in the L2 cache; the last rows, which see most keys
// under a causal mask, come first.
AttentionDevice::Block AttentionDevice::block_of(const Expr &number) const {
    const Expr of_head = blocks_of_head(), line = number / of_head;
    const Expr first_row = (of_head - 1 - (number - line * of_head)) * tile.queries();
    const Expr heads = config.has_gqa ? num_kv_heads : num_heads, part = line / heads, head = line - part * heads;
    if (!config.has_gqa) return {part, 0, head, head / (num_heads / num_kv_heads), first_row};
    const Expr s = part / args.num_splits;
    return {s, part - s * args.num_splits, head * heads_of_row(), head, first_row};
}

AttentionDevice::Row AttentionDevice::query_in(const Block &block, const Expr &in_block) const {
    const Expr r = block.first_row + in_block, i = r / heads_of_row();
    return {block.sequence, block.first_head + (r - i * heads_of_row()), i};
}

Expr AttentionDevice::key_of(const Expr &in_step, const Expr &step, const Expr &number) const {
    return met(number)[0] + step * tile.products.columns + in_step;
}

// Which of all scales one is: k's and v's have the same strides. 2^32 of them would be of 2^38 bytes of codes.
Expr AttentionDevice::number_of_scale(const Expr &in_batch, const Expr &of_head, const Expr &of_token) const {
    const auto steps = [&](const Expr &count, int dimension) {
        return cast<uint32_t>(count) * cast<uint32_t>(args.k_scale.dim(dimension).stride());
    };
    return steps(in_batch, 2) + steps(of_head, 0) + steps(of_token, 1);
}

void AttentionDevice::define_places() {
    // One thread computes this, one `fields`: neither may read the other, since all meet at the barrier between them.
    const Block at = block_of(down);
    const auto read = [&](SequenceField which) { return DeviceScores::field(which, at.sequence); };
    const Expr num_keys = read(sequence_kv_len), first_i = query(0, down).i;
    const Expr last_i = max(min(query(tile.products.rows - 1, down).i, read(sequence_q_len) - 1), 0);
    Expr begin = min(first_visible(first_i, read(sequence_visible_begin)), num_keys);
    Expr end = end_visible(last_i, read(sequence_visible_end), num_keys);
    if (config.has_gqa) {
        begin = max(begin, at.split * args.split_len);
        end = min(end, (at.split + 1) * args.split_len);
    }
    const Expr first = begin / tile.products.columns * tile.products.columns;
    const Expr count = ceil_div(max(end - first, 0), tile.products.columns);
    const Expr steps_of_block = select(first_i < read(sequence_q_len), count, 0);
    if (tile.in_fragments && config.has_score_mod()) {
        std::vector<Expr> asked = asked_of(read);
        if (skips_first_steps()) asked.insert(asked.end(), {first, ceil_div(steps_of_block, searchers)});
        block_values(down) = Tuple(asked);
    }
    std::vector<Expr> of_block = {first, steps_of_block};
    if (skips_first_steps()) {
        define_first_seen();
        Expr skipped = steps_of_block;
        for (int n = 0; n < searchers; n++) skipped = min(skipped, first_seen(n, down));
        of_block = {first + skipped * tile.products.columns, steps_of_block - skipped};
    }
    if (tile.in_fragments) {
        of_block.push_back(first_visible(last_i, read(sequence_visible_begin)));
        of_block.push_back(end_visible(first_i, read(sequence_visible_end), num_keys));
    }
    met(down) = Tuple(of_block);

    const Expr kv_len = field(sequence_kv_len, at.sequence);
    const Row own = query(row, down);
    const Expr existing = min(own.i, max(field(sequence_q_len, own.sequence) - 1, 0));
    q_rows(row, down) = q.row(own.sequence, own.head, field(sequence_first_q, own.sequence) + existing);
    const Expr seen_begin = first_visible(own.i, field(sequence_visible_begin, own.sequence));
    const Expr seen_end = end_visible(own.i, field(sequence_visible_end, own.sequence), kv_len);
    row_range(row, down) =
        Tuple(seen_begin, select(exists(own), cast<uint32_t>(max(seen_end - seen_begin, 0)), Expr(0u)));

    std::vector<Expr> found;
    if (tile.in_fragments && !config.paged) {
        // Keys that do not exist are not read. A step is a term of the address, which so is one addition.
        const Expr of_first = field(sequence_first_key, at.sequence) + key_of(key, 0, down);
        for (const Tensor &of : {k, v}) {
            found.push_back(after(of.row(at.sequence, at.kv_head, of_first), across, of.token * tile.products.columns));
        }
        if (config.has_kv_scales()) {
            found.push_back(number_of_scale(at.sequence, at.kv_head, of_first + across * tile.products.columns));
        }
        key_rows(key, across, down) = Tuple(found);
        return;
    }
    const Expr j = min(key_of(key, across, down), max(kv_len - 1, 0));
    Expr pages = pages_of(at.sequence), head = at.kv_head;
    if (config.paged && tile.parts > 1) {  // read where they are used, which leaves registers to the state
        paged_head(down) = Tuple(pages, head);
        pages = paged_head(down)[0];
        head = paged_head(down)[1];
    }
    const Slot slot = config.paged ? slot_of(j, at.sequence, pages)
                                   : Slot{at.sequence, field(sequence_first_key, at.sequence) + j, Expr()};
    for (const Tensor &of : {k, v}) found.push_back(of.row(slot.page, head, slot.slot));
    if (tile.in_fragments && config.has_kv_scales()) {
        found.push_back(number_of_scale(slot.page, head, slot.slot));
    }
    for (const Tensor &of : {k_scale, v_scale}) {
        if (!config.has_kv_scales() || tile.in_fragments) break;
        found.push_back(load_at(Float(32), of.row(slot.page, head, slot.slot), 0));
    }
    key_rows(key, across, down) = Tuple(found);
}

// ---- One step
Expr AttentionDevice::scale_of_key(int of_values, const Expr &in_step) const {
    if (tile.in_fragments) return scales(in_step, of_values, across, down);
    return key_rows(in_step, across, down)[2 + of_values];
}

void AttentionDevice::define_logits() {
    const Expr x = q_rows(product.row, down), w = key_rows(product.column, across, down)[0];
    // Rows may be read before the loop over steps: not those that have none.
    const Expr is_read = config.has_gqa || tile.in_fragments ? met(down)[1] > 0 : Expr();
    const Row at = query(row, down);
    const Expr in_step = key_in_step(column, row), j = key_of(in_step, across, down);
    TileRows queries = {config.dtype, {down}, x, is_read}, keys = {config.kv_dtype, {across, down}, w};
    if (tile.in_fragments) {
        // Q takes the sign of the scale, and exponents take its size, where nothing else changes a logit.
        if (is_unscaled()) queries.flipped = select(scale < 0, cast<uint16_t>(0x8000), cast<uint16_t>(0));
        // Chunks of both have the elements of one of keys: of int8 keys twice what 16 bytes of queries have.
        const Expr has_whole_chunks = is_of_chunks(head_dim, config.kv_dtype);
        queries.whole = q.in_chunks() && has_whole_chunks;
        keys.whole = k.in_chunks() && has_whole_chunks;
        if (config.head_dim == tile.products.width * tile.products.chunks) {
            keys.exists = key_exists(product.column);
        } else {  // one comparison of keys and chunks
            keys.line = key_of(product.column, across, down);
            keys.lines = field(sequence_kv_len, block_of(down).sequence);
        }
        queries.held = tile.holds_queries;
        queries.meets_codes = config.has_kv_scales() && !tile.holds_queries;
    }
    Expr of_query, of_key;
    if (tile.parts > 1) {  // which share queries
        queries.first = q_rows(row_of(product.row, 0), down);
        of_query = query_of(product.row);
        of_key = key_in_step(product.column, product.row);
    }
    if (tile.in_fragments && config.any_head_dim()) {
        product.over_k.where(is_used(product.over_k.y * tile.products.width, head_dim));
        over_keys.where(is_used(d, head_dim_v));
    }
    product.define_product(queries, keys, {across, down}, of_query, of_key);
    if (tile.in_fragments && config.has_kv_scales()) {
        const Var of_values("of_values");
        const Expr first = select(of_values == 0, k_scale.first, v_scale.first),
                   number = key_rows(key, across, down)[2];
        scales(key, of_values, across, down) =
            load_at_if(key_exists(key), Float(32), after(first, number, bytes_of(Float(32), 1)), 0);
    }
    dots(column, row, across, down) = product.sum(column, row, across, down);

    Expr dot = dots(column, row, across, down);
    if (config.has_kv_scales()) dot = dot * scale_of_key(0, in_step);
    if (tile.in_fragments) return define_logits_of_fragments(dot);
    LogitChanges changes = changes_of(at);
    changes.branches = true;
    if (!config.has_softcap) changes.leave_out_cap();
    if (!config.has_alibi) changes.alibi_slopes = Expr();
    const ScorePlace place = {at.sequence, at.head, at.i, j, at.i + field(sequence_position_offset, at.sequence)};
    if (config.score_mod.logit) {
        changes.user = [&](const Expr &logit) { return config.score_mod.logit(logit, place, score_buffers); };
    }
    ProbsScore score = score_in(dot, Expr(), at, j);
    score.in_range = is_in_range(j);
    if (config.score_mod.visible) score.user_visible = config.score_mod.visible(place, score_buffers);
    const ProbsScore::Logit found = score.logit(changes, LogitUnits::log16);
    logits(column, row, across, down) = hidden_unless(found.visible, found.changed.value);
}

void AttentionDevice::define_softmax() {
    const std::vector<Var> of_lane = {u, row, across, down}, of_row = {row, across, down};
    const std::vector<Expr> at_lane(of_lane.begin(), of_lane.end()), at_row(of_row.begin(), of_row.end());
    const Expr in_lane = over_columns * tile.lanes + u, is_first = across == 0;
    lane_max(of_lane) = lowest_logit();
    lane_max(of_lane) = maximum_on_device(lane_max(at_lane), logits(in_lane, row, across, down));
    old_max(of_row) = branched(is_first, lowest_logit(), carried(row_max, row, across));
    Expr largest = old_max(at_row), sum;
    for (int lane = 0; lane < tile.lanes; lane++) {
        largest = maximum_on_device(largest, lane_max(lane, row, across, down));
    }
    row_max(of_row) = largest;
    factor(of_row) = power_of_16(old_max(at_row) - row_max(at_row));

    const Expr logit = logits(column, row, across, down);
    const Expr weight = power_of_16(logit - row_max(at_row));
    weights(column, row, across, down) =
        as_float(select(is_negative_infinity(logit), Expr(left_out_bits), as_word(weight)));
    lane_sum(of_lane) = 0.f;
    lane_sum(of_lane) += weights(in_lane, row, across, down);
    sum = branched(is_first, 0.f, carried(row_sum, row, across) * factor(at_row));
    for (int lane = 0; lane < tile.lanes; lane++) sum += lane_sum(lane, row, across, down);
    row_sum(of_row) = sum;
}

// The weight of a hidden or dropped key: its value is left out, not multiplied by 0. No exponential gives -0.
Expr AttentionDevice::is_hidden(const Expr &weight) const { return as_word(weight) == Expr(left_out_bits); }

void AttentionDevice::define_values() {
    Func multiplied = weights;
    if (tile.in_fragments && changes_weights()) {
        define_value_weights_of_fragments();
        multiplied = value_weights;
    } else if (changes_weights()) {
        Expr weight = weights(column, row, across, down), left_out = is_hidden(weight);
        if (config.has_dropout) {
            define_kept();
            left_out = left_out || !keeps_weight();
        }
        if (config.has_kv_scales()) weight = weight * scale_of_key(1, key_in_step(column, row));
        // In the place of the weights, once they have been summed.
        value_weights(column, row, across, down) =
            once(as_float(select(left_out, Expr(left_out_bits), as_word(weight))), row_sum(row, across, down));
        multiplied = value_weights;
    }
    const Expr in_step = chunk * tile.chunk + in_chunk, first = key_rows(in_step, across, down)[1];
    const Type stored = stored_type(config.kv_dtype);
    Expr element;
    if (tile.in_fragments) {
        const int width = chunk_of(config.kv_dtype);
        const Expr in_row = d / width * width < head_dim_v;
        const Expr keys = field(sequence_kv_len, block_of(down).sequence);
        const bool is_whole = config.head_dim_v == tile.columns;
        element =
            load_chunks_if(is_whole ? key_exists(in_step) : key_of(in_step, across, down) < select(in_row, keys, 0),
                           v.in_chunks() && is_of_chunks(head_dim_v, config.kv_dtype), stored, first, d,
                           is_whole ? Expr() : head_dim_v);
    } else {
        element = config.head_dim_v == tile.columns ? load_at(stored, first, d)
                                                    : load_at_if(d < head_dim_v, stored, first, d);
        element = to_float(config.kv_dtype, element);
    }
    values(d, in_chunk, chunk, across, down) = element;

    // In fragments the state takes its place, once it has been scaled, and weights are no floats after it.
    const bool has_codes = config.has_kv_scales();
    const Func &shrinks = tile.in_fragments && has_codes ? unit_factor : factor;
    const std::vector<Expr> own = of_output(d, {row, across, down});
    block_out(d, row, across, down) = tile.in_fragments ? once(once(0.f, shrinks(own)), row_sum(own)) : Expr(0.f);
    const Expr so_far = block_out(d, row, across, down);
    const Expr weight = multiplied(over_keys.y * tile.chunk + over_keys.x, row, across, down);
    const Expr value = values(d, key_in_step(over_keys.x, row), over_keys.y, across, down);
    if (tile.in_fragments) {
        const ElementType of_weights = has_codes ? ElementType::f16 : config.kv_dtype;
        const Expr sum = so_far + rounded_on_device(of_weights, weight) * to_float(config.kv_dtype, value);
        // Codes are numbers.
        block_out(d, row, across, down) =
            has_codes ? sum : select(in_repetition(across) && is_hidden(weight), so_far, sum);
    } else {
        block_out(d, row, across, down) = select(is_hidden(weight), so_far, fused_on_device(weight, value, so_far));
    }

    steps.where(steps < met(down)[1]);
    // The first step is not skipped: the maxima and sums of rows begin with it. In fragments it is one that is seen.
    if (config.score_mod.block_visible) steps.where(block_test(steps == 0 || is_seen_block(key_of(0, steps, down))));
    const std::vector<Expr> of_step = of_output(d, {row, steps, down});
    const Expr scaled = once(shrinks(of_step), row_sum(of_step)), of_block = block_out(d, row, steps, down);
    state(d, row, down) = 0.f;
    state(d, row, down) = tile.in_fragments ? state(d, row, down) * scaled + of_block
                                            : fused_on_device(state(d, row, down), scaled, of_block);
}

}  // namespace heed
