// Attention in fragments of tensor cores: numbers of a row are those of the four lanes that have columns of it.
#include <limits>

#include "generators/lowering/carried.h"
#include "generators/ops/attention_device.h"

namespace heed {

using namespace Halide;

// The lane whose number differs by one bit.
Expr AttentionDevice::other_lane(const Var &u, int bit) { return clamp(u + bit - u / bit % 2 * (2 * bit), 0, 3); }

std::vector<Expr> AttentionDevice::of_lane(const Expr &column, int own, std::vector<Expr> row) const {
    if (tile.in_fragments) row.insert(row.begin(), column % (4 * own) / own);
    return row;
}

void AttentionDevice::define_logits_of_fragments(const Expr &dot) {
    const Expr logit = changed_in_stages(dot);
    const Expr first = key_of(0, across, down), end = first + tile.products.columns;
    const Expr sees_all = same_for_block(first >= met(down)[2] && end <= met(down)[3]);
    logits(column, row, across, down) =
        hidden_unless(sees_all || is_in_range(key_of(key_in_step(column, row), across, down)), logit);
}

// The last query takes the place of those that do not exist.
void AttentionDevice::define_query_values() {
    const Row at = query_in(block_of(down), of_block);
    const Expr i = min(at.i, field(sequence_q_len, at.sequence) - 1);
    const auto line = [&](const Expr &first, const Expr &batch, const Expr &head, const Expr &of_row) {
        return after(after(after(first, at.sequence, batch), at.head, head), i, of_row);
    };
    std::vector<Expr> values;
    if (config.has_mask) values.push_back(line(mask, mask_batch, mask_head, mask_row));
    if (config.has_bias) values.push_back(line(bias, bias_batch, bias_head, bias_row));
    if (config.has_alibi) values.insert(values.end(), {of_head(alibi_slopes, slope_head, at.head, 0), at.i});
    if (asks_user()) values.insert(values.end(), {i, at.head});
    if (!values.empty()) query_values(of_block, down) = Tuple(values);
}

Expr AttentionDevice::changed_in_stages(const Expr &dot) {
    define_query_values();
    LogitChanges changes = logit_changes(*this), uncapped = changes;
    uncapped.leave_out_cap();
    Expr logit = is_unscaled() ? dot : changed_logit(dot, uncapped, LogitUnits::log16).value;
    const auto add_stage = [&](const char *name, const Expr &changed) {
        stages.emplace_back(name);
        stages.back()(column, row, across, down) = changed;
        logit = stages.back()(column, row, across, down);
    };
    const auto stage = [&](const char *name, const Expr &is_used, const Expr &changed) {
        add_stage(name, select(same_for_block(is_used), changed, logit));
    };
    const auto plus = [&](const Expr &natural) {
        LogitChanges sum;
        sum.bias = natural;
        return changed_logit(logit, sum, LogitUnits::log16).value;
    };
    const Expr j = key_of(key_in_step(column, row), across, down);
    const auto of_row = [&](int value) { return value_of(query_values, {query_of(row), down}, value); };
    // The last key takes the place of those that do not exist.
    const auto element = [&](int line, const Type &type, const Expr &key_bytes) {
        const Expr key = min(j, field(sequence_kv_len, block_of(down).sequence) - 1);
        return load_at(type, after(of_row(line), key, key_bytes), 0);
    };
    const auto add_bias = [&](const char *name, BiasForm form, const Expr &of) {
        stage(name, bias_form == form, hidden_unless(!is_negative_infinity(of), plus(of)));
    };
    const int of_mask = 0, of_bias = of_mask + config.has_mask, slope = of_bias + config.has_bias;
    const int place = slope + (config.has_alibi ? 2 : 0);
    if (config.has_softcap) {
        const Expr cap = softcap * log16_e;
        stage("capped", changes.cap_on(), cap * tanh_on_device(logit * (1.f / cap)));
    }
    if (config.has_alibi) {
        const Expr offset = field(sequence_position_offset, block_of(down).sequence);
        const Expr distance = token_distance(j, of_row(slope + 1), offset);
        stage("of_place", is_given(alibi_slopes), plus(changes.bias_of_place(of_row(slope), distance)));
    }
    if (config.has_bias) add_bias("with_bias", bias_of_f32, element(of_bias, Float(32), bias_key));
    if (config.has_bias_16()) {
        const Type stored = stored_type(config.dtype);
        add_bias("with_bias_16", bias_of_dtype, to_float(config.dtype, element(of_bias, stored, bias_key)));
    }
    if (asks_user()) {
        // What is the same for all rows says so, and what is made of it is made once.
        const Expr i = of_row(place), head = config.has_gqa ? of_row(place + 1) : block_values(down)[1];
        add_stage("by_user", by_user(logit, {block_values(down)[0], head, i, j, i + block_values(down)[5]}));
        of_user = stages.back();
    }
    if (config.has_mask) {
        const Expr byte = element(of_mask, UInt(8), mask_key);
        stage("allowed", mask_form != no_mask, hidden_unless(mask_allows(byte, mask_form), logit));
    }
    return logit;
}

// What exponents are made of: the powers are those of 2.
Expr AttentionDevice::exponent_unit() const {
    if (!is_unscaled()) return 4.f;  // logits are in log16
    // A factor of 0 would make NaN of a hidden logit; the least normal number leaves every weight exactly 1.
    const float least = std::numeric_limits<float>::min();
    return max(abs(scale) * log2_e, least);
}

// Where a base is so large that its rounding could carry weights out of range, the maximum is subtracted first. By
// rows, so that none depends on another.
Expr AttentionDevice::is_huge(const Expr &largest) const {
    // Half a unit of the first is 2^-4; products with 4 are exact, unless they are infinite.
    return abs(largest * exponent_unit()) > (is_unscaled() ? 0x1p20f : 0x1p126f);
}

// Numbers that are none, of which hidden values may be the reason: a weight of 0 does not hide them.
void AttentionDevice::define_doubts(const Expr &sum, const Expr &largest) {
    const auto is_nan = [](const Expr &x) { return (as_word(x) & Expr(0x7fffffffu)) > Expr(0x7f800000u); };
    // The weights of a row that sees a key may all be too small.
    const Expr sees_key = as_word(largest) != as_word(lowest_logit());
    doubts(u, row, down) = cast<int32_t>(is_nan(sum) || (sees_key && is_huge(largest)));
    if (config.has_kv_scales()) return;  // codes are numbers
    const Expr element = state(over_pairs.y * 8 + u * 2 + over_pairs.x, row, down);
    doubts(u, row, down) = doubts(u, row, down) | cast<int32_t>(is_nan(element));
}

Expr AttentionDevice::carried_number(const Func &f, const Expr &lane, const Expr &step) const {
    return carried(f, row * tile.lanes + lane, step);
}

// The sum of all lanes, and the maximum, once neither is in doubt.
std::pair<Expr, Expr> AttentionDevice::sum_of_lanes(const Expr &sum, const Expr &largest) {
    define_doubts(sum, largest);
    const Expr sure = doubts(u, row, down);
    const auto in_lane = [&](const Expr &lane) { return std::vector<Expr>{lane, row, down}; };
    last_sum(u, row, down) = once(sum, sure);
    pair_sum(u, row, down) = last_sum(u, row, down) + last_sum(in_lane(other_lane(u, 1)));
    return {pair_sum(u, row, down) + pair_sum(in_lane(other_lane(u, 2))), once(largest, sure)};
}

// Makes sum and maximum those of all parts of a row. Returns the factor of this part's output.
Expr AttentionDevice::merge_parts(Expr &sum, Expr &largest) {
    part_numbers(u, row, down) = Tuple(largest, sum);
    for (int first = 0; first < tile.columns; first += tile.columns_handed_over) {
        const Expr column = handed_over + first, of_column = output(column, row, down);
        part_states.emplace_back("part_state_" + std::to_string(first));
        part_states.back()(handed_over, row, down) = once(of_column, doubts(of_output(column, {row, down})));
    }
    const Expr own = part_numbers(0, row, down)[0];
    const auto of = [&](int part) { return part_numbers(0, row_of(query_of(row), part), down); };
    const auto shrunk = [&](const Expr &maximum) { return exp2_on_device((maximum - largest) * exponent_unit()); };
    largest = own;
    for (int part = 0; part < tile.parts; part++) largest = maximum_on_device(largest, of(part)[0]);
    sum = 0.f;
    for (int part = 0; part < tile.parts; part++) sum += of(part)[1] * shrunk(of(part)[0]);
    return shrunk(own);
}

void AttentionDevice::define_softmax_of_fragments() {
    const std::vector<Var> of_lane = {u, row, across, down};
    const std::vector<Expr> own(of_lane.begin(), of_lane.end());
    const auto in_lane = [&](const Expr &lane) { return std::vector<Expr>{lane, row, across, down}; };
    const Expr unit = exponent_unit(), is_first = across == 0, in_columns = over_columns.y * 8 + u * 2 + over_columns.x;
    old_max(of_lane) = branched(is_first, lowest_logit(), carried_number(row_max, u, across));
    lane_max(of_lane) = old_max(own);
    lane_max(of_lane) = maximum_on_device(lane_max(own), logits(in_columns, row, across, down));
    pair_max(of_lane) = maximum_on_device(lane_max(own), lane_max(in_lane(other_lane(u, 1))));
    const Expr largest = maximum_on_device(pair_max(own), pair_max(in_lane(other_lane(u, 2))));
    const Expr grows = (largest - old_max(own)) * unit > tile.most_growth;
    row_max(of_lane) = tile.most_growth == 0 ? largest : select(grows, largest, old_max(own));
    // Finite: of a row that has seen no key all weights are 0.
    const auto subtracts = [&](const std::vector<Expr> &at) { return in_repetition(across) && is_huge(row_max(at)); };
    base(of_lane) = select(subtracts(own), 0.f, maximum_on_device(row_max(own) * unit, lowest_logit()));
    // Exactly 1 where the maximum stays: the base's rounding would make it nearly 1.
    const Expr old = old_max(own) - select(subtracts(own), row_max(own), 0.f);
    const Expr shrinks = exp2_on_device(fused_on_device(old, unit, -base(own)));
    factor(of_lane) = select(as_word(old_max(own)) == as_word(row_max(own)), 1.f, shrinks);

    const std::vector<Expr> of_column = of_row(column, {row, across, down});
    const Expr logit = logits(column, row, across, down);
    const Expr less = logit - select(subtracts(of_column), row_max(of_column), 0.f);
    const Expr weight = exp2_on_device(fused_on_device(less, unit, -base(of_column)));
    const Expr marks = in_repetition(across) && is_negative_infinity(logit);
    weights(column, row, across, down) =
        config.has_kv_scales() ? weight : as_float(select(marks, Expr(left_out_bits), as_word(weight)));
    lane_sum(of_lane) = branched(is_first, 0.f, carried_number(row_sum, u, across) * factor(own));
    lane_sum(of_lane) += weights(in_columns, row, across, down);
    row_sum(of_lane) = lane_sum(own);
}

// What values are multiplied by, once weights have been summed.
void AttentionDevice::define_value_weights_of_fragments() {
    if (config.has_dropout) define_kept_of_fragments();
    if (config.has_kv_scales()) return define_units();
    const Expr weight = weights(column, row, across, down);
    const Expr left = as_float(select(keeps_weight(), as_word(weight), Expr(left_out_bits)));
    value_weights(column, row, across, down) =
        once(select(same_for_block(drops()), left, weight), row_sum(of_row(column, {row, across, down})));
}

// Weights times the scales of their values, in units of the largest such product of the row so far: f16 keeps them as
// well as weights alone, whatever the range of the scales, and where one key has all the weight its output is exact.
void AttentionDevice::define_units() {
    constexpr float least = std::numeric_limits<float>::min(), most = 0x1p125f;  // so are reciprocals
    const std::vector<Var> of_lane = {u, row, across, down};
    const std::vector<Expr> own(of_lane.begin(), of_lane.end());
    const auto in_lane = [&](const Expr &lane) { return std::vector<Expr>{lane, row, across, down}; };
    // Scales of keys that the row does not use may be NaN.
    const Expr used =
        select(is_negative_infinity(logits(column, row, across, down)), 0.f, scale_of_key(1, key_in_step(column, row)));
    const Expr scaled = weights(column, row, across, down) * used;
    scaled_weights(column, row, across, down) =
        config.has_dropout ? select(same_for_block(drops()), select(keeps_weight(), scaled, 0.f), scaled) : scaled;
    old_unit(of_lane) = branched(across == 0, least, carried_number(row_unit, u, across)) * factor(own);
    lane_unit(of_lane) = maximum_on_device(old_unit(own), least);
    const Expr in_columns = over_columns.y * 8 + u * 2 + over_columns.x;
    lane_unit(of_lane) =
        maximum_on_device(lane_unit(own), magnitude_on_device(scaled_weights(in_columns, row, across, down)));
    pair_unit(of_lane) = maximum_on_device(lane_unit(own), lane_unit(in_lane(other_lane(u, 1))));
    row_unit(of_lane) = min(maximum_on_device(pair_unit(own), pair_unit(in_lane(other_lane(u, 2)))), most);
    of_unit(of_lane) = reciprocal_on_device(row_unit(own));
    unit_factor(of_lane) = select(row_unit(own) == old_unit(own), 1.f, old_unit(own) * of_unit(own));
    value_weights(column, row, across, down) =
        scaled_weights(column, row, across, down) * of_unit(of_row(column, {row, across, down}));
}

}  // namespace heed
