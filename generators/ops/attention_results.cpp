// What a row's state makes of it, where it is stored, and which pages do not exist.
#include <tuple>

#include "generators/lowering/carried.h"
#include "generators/ops/attention_device.h"
#include "generators/ops/pair_stores.h"

namespace heed {

using namespace Halide;

void AttentionDevice::add(const Expr &of_out, const Expr &of_lse) {
    const FuncRef before = named(0, 0, 0, 0);
    named(0, 0, 0, 0) = Tuple(before[0] + cast(output_types()[0].type, of_out), before[1] + cast<float>(of_lse));
    named.update(parts++).allow_race_conditions();
}

void AttentionDevice::define_results() {
    const Row at = query(row, down);
    const Expr count = met(down)[1];
    const auto left = [&](const Func &f) {
        return tile.in_fragments ? carried_number(f, u, count) : carried(f, row, count);
    };
    const Expr of_state = state(tile.in_fragments ? own_columns() * u : Expr(0), row, down);
    Expr sum = branched(count > 0, once(left(row_sum), of_state), 0.f);
    Expr largest = branched(count > 0, left(row_max), lowest_logit());
    if (tile.in_fragments) std::tie(sum, largest) = sum_of_lanes(sum, largest);
    if (tile.in_fragments && config.has_kv_scales()) {
        last_unit(u, row, down) = once(branched(count > 0, left(row_unit), 1.f), doubts(u, row, down));
    }
    const Expr of_part = tile.parts > 1 ? merge_parts(sum, largest) : Expr();
    if (is_unscaled()) largest = largest * exponent_unit();
    const RowResult result = with_sink(largest, sum, of_head(sink, sink_head, at.head, negative_infinity_bits),
                                       is_unscaled() ? LogitUnits::log2 : LogitUnits::log16);
    const Expr factor = config.has_dropout ? result.factor() * args.dropout_scale : result.factor();
    if (config.has_gqa) {
        const Expr of_split = config.has_dropout ? args.dropout_scale : Expr(1.f);
        const Expr in_log2 = maximum_on_device(largest * (is_unscaled() ? 1.f : 4.f), lowest_logit());
        const Expr of_row = select(is_whole(), factor, of_split);
        results(row, down) =
            Tuple(of_part.defined() ? of_row * of_part : of_row, select(is_whole(), result.lse, in_log2), sum);
    } else if (tile.in_fragments) {
        results(u, row, down) = Tuple(factor, result.lse);
    } else {
        results(row, down) = Tuple(factor, result.lse);
    }
}

// A column of a row's state, in units of 1.
Expr AttentionDevice::output(const Expr &column, const Expr &of_row, const Expr &number) const {
    const Expr sum = state(column, of_row, number);
    return last_unit.defined() ? sum * last_unit(of_output(column, {of_row, number})) : sum;
}

Expr AttentionDevice::state_of_part(const Expr &column, const Expr &of_row, const Expr &number) const {
    const int columns = tile.columns_handed_over;
    Expr result = part_states[0](min(column, columns - 1), of_row, number);
    if (part_states.size() == 1) return result;
    return select(column < columns, result, part_states[1](max(column - columns, 0), of_row, number));
}

void AttentionDevice::add_rows_of_fragments() {
    const Row own = query(row, down), at = query(all.y, all.z);
    const auto token = [&](const Row &of) { return field(sequence_first_q, of.sequence) + of.i; };
    const Expr address = out.row(own.sequence, own.head, token(own)) + bytes_of(UInt(16), u * own_columns());
    out_rows(u, row, down) = once(select(exists(own), address, cast<uint64_t>(0)), results(u, row, down)[0]);

    const auto in_row = [&](const Expr &column) { return of_output(column, {all.y, all.z}); };
    const auto value = [&](const Expr &column) { return output(column, all.y, all.z) * results(in_row(column))[0]; };
    const Expr to_out = out_rows(in_row(all.x)), there = to_out != cast<uint64_t>(0);
    const Expr in_words = out.begins_at_multiples(4) && head_dim_v % 2 == 0;
    const auto place = [&](const Expr &column) {
        return to_out + bytes_of(UInt(16), column - in_row(column)[0] * own_columns());
    };
    add(store_in_pairs(config.dtype, all.x, there && all.x < head_dim_v, in_words, value, place),
        store_at_if(there && all.x == 0, lse.row(at.sequence, at.head, token(at)), 0, results(in_row(all.x))[1]));
}

void AttentionDevice::add_rows_of_parts() {
    const Row own = query_in(block_of(down), of_block), at = query_in(block_of(all.z), all.y);
    const auto token = [&](const Row &of) { return field(sequence_first_q, of.sequence) + of.i; };
    const Expr address = out.row(own.sequence, own.head, token(own));
    std::vector<Expr> places = {
        select(exists(own), address, cast<uint64_t>(0)),
        states.row(own.sequence, own.head * args.num_splits + block_of(down).split, token(own))};
    for (int part = 0; part < tile.parts; part++) places.push_back(results(row_of(of_block, part), down)[0]);
    out_rows(of_block, down) = Tuple(places);

    const FuncRef place = out_rows(all.y, all.z);
    Expr value = 0.f;
    for (int part = 0; part < tile.parts; part++) {
        value += state_of_part(all.x, row_of(all.y, part), all.z) * Expr(place[2 + part]);
    }
    const Expr there = Expr(place[0]) != cast<uint64_t>(0), is_first = there && all.x == 0;
    const Expr in_row = there && all.x < head_dim_v,
               element = cast<uint16_t>(packed_on_device(config.dtype, value, 0.f));
    const Expr end = args.states.dim(0).extent(), to_lse = lse.row(at.sequence, at.head, token(at));
    const FuncRef numbers = results(row_of(all.y, 0), all.z);
    add(store_at_if(in_row && is_whole(), place[0], all.x, element) +
            store_at_if(in_row && !is_whole(), place[1], all.x, value),
        store_at_if(is_first && is_whole(), to_lse, 0, numbers[1]) +
            store_at_if(is_first && !is_whole(), place[1], end - 2, numbers[1]) +
            store_at_if(is_first && !is_whole(), place[1], end - 1, numbers[2]));
}

void AttentionDevice::add_rows() {
    if (tile.in_fragments) return tile.parts > 1 ? add_rows_of_parts() : add_rows_of_fragments();
    const Row at = query(all.y, all.z);
    const Expr token = field(sequence_first_q, at.sequence) + at.i, there = exists(at);
    const FuncRef found = results(all.y, all.z);
    const Expr value = output(all.x, all.y, all.z) * Expr(found[0]);
    const Expr to_out = out.row(at.sequence, at.head, token), to_lse = lse.row(at.sequence, at.head, token);
    const Expr in_row = there && all.x < head_dim_v, is_first = there && all.x == 0;
    const Expr numbers = found[1];
    Expr of_out = store_at_if(in_row && is_whole(), to_out, all.x,
                              config.dtype == ElementType::f32 ? value : from_float(config.dtype, value));
    Expr of_lse = store_at_if(is_first && is_whole(), to_lse, 0, numbers);
    if (config.has_gqa) {
        const Expr to_state = states.row(at.sequence, at.head * args.num_splits + block_of(all.z).split, token);
        const Expr end = args.states.dim(0).extent();
        of_out += store_at_if(in_row && !is_whole(), to_state, all.x, value);
        of_lse += store_at_if(is_first && !is_whole(), to_state, end - 2, numbers) +
                  store_at_if(is_first && !is_whole(), to_state, end - 1, found[2]);
    }
    add(of_out, of_lse);
}

// Looks at the pages of all keys that some row of a sequence sees.
void AttentionDevice::add_faults() {
    const Expr s = faults.y, j = faults.x, kv_len = DeviceScores::field(sequence_kv_len, s),
               q_len = DeviceScores::field(sequence_q_len, s);
    const Expr seen = j >= first_visible(0, DeviceScores::field(sequence_visible_begin, s)) &&
                      j < end_visible(q_len - 1, DeviceScores::field(sequence_visible_end, s), kv_len) && q_len > 0;
    const Expr page = j / max(page_size, 1);
    const Expr id = load_at_if(seen, Int(32), after(page_table, s, page_table_row), min(page, table_pages - 1));
    const Expr wrong = seen && (id < 0 || id >= num_pages);
    const Expr nothing = store_at_if(Internal::const_false(), device_status, 0, Expr(0u));
    add(store_at_if_zero(wrong, device_status, cast<uint32_t>(s * 8 + fault_of_page)), nothing);
}

}  // namespace heed
