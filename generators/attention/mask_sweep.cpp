// What mask and bias hide, found out before the arithmetic: the ends of the keys that a task's rows see, and the class
// of a block of keys. Both read vectors of keys of each row: of bytes, two instructions each.
#include <limits>

#include "generators/attention/builder.h"
#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"

namespace heed {

using namespace Halide;

namespace {

constexpr int no_key = std::numeric_limits<int>::lowest() + 1;  // below all, and so is what it negates above all

Expr is_zero_word(const Expr &x) { return x == cast(x.type(), 0); }

// Minus infinity as a bias of the type stores it.
Expr hiding_word(ElementType type) {
    if (type == ElementType::f32) return cast<uint32_t>(negative_infinity_bits);
    return cast<uint16_t>(type == ElementType::f16 ? 0xfc00 : 0xff80);
}

}  // namespace

KeySights::KeySights(const std::string &suffix)
    : mask("mask_sights" + suffix), bias("bias_sights" + suffix), bias_16("bias_16_sights" + suffix) {}

BlockSights::BlockSights(const std::string &suffix)
    : keys(suffix), some_seen("some_seen" + suffix), all_as_is("all_as_is" + suffix) {}

std::vector<KeySights::Source *> KeySights::defined() {
    std::vector<Source *> list;
    for (Source *source : {&mask, &bias, &bias_16}) {
        if (source->words.defined()) list.push_back(source);
    }
    return list;
}

// Key st.u of each of `chunks` vectors, the first one of chunk c being first(c).
void AttentionBuilder::define_sights(KeySights &sights, const Expr &asked, int chunks,
                                     const std::function<Expr(Expr)> &first, const Args &rest) {
    Args at{st.u};
    at.insert(at.end(), rest.begin(), rest.end());
    const auto define = [&](KeySights::Source &source, const Func &tensor, const Expr &read, const Tuple &start,
                            const std::function<Tuple(Tuple, Expr)> &with) {
        source.over = RDom({{0, cfg.row_block}, {0, chunks}}, "over_" + source.words.name());
        source.over.where(asked && read);
        Expr key = inside(first(source.over.y) + st.u, in.max_kv_len);
        source.words(vars(at)) = start;
        source.words(vars(at)) = with(source.words(at), of_row(tensor, source.over.x, key));
    };
    if (cfg.has_mask) {
        define(sights.mask, in.mask, st.sweep.mask_read, Tuple(cast<uint8_t>(255), cast<uint8_t>(0)),
               [](const Tuple &so_far, const Expr &byte) { return Tuple(min(so_far[0], byte), max(so_far[1], byte)); });
    }
    const auto define_bias = [&](KeySights::Source &source, const Func &tensor, const Expr &read, ElementType type) {
        Expr hides = hiding_word(type), none = cast(hides.type(), 0);
        define(source, tensor, read, Tuple(none, none), [&](const Tuple &so_far, const Expr &element) {
            Expr word = reinterpret(hides.type(), element);
            return Tuple(so_far[0] | (word ^ hides), so_far[1] | word);
        });
    };
    if (!cfg.has_bias) return;
    define_bias(sights.bias, in.bias, sights.bias_read && !st.bias_is_16, ElementType::f32);
    if (cfg.has_bias_16()) define_bias(sights.bias_16, in.bias_16, sights.bias_read && st.bias_is_16, cfg.dtype);
}

// Whether some row sees the key, as far as the sweep tells; whether all rows see it and none has a bias.
AttentionBuilder::Sight AttentionBuilder::sight(const KeySights &sights, const Args &at) const {
    Sight sight{Internal::const_true(), Internal::const_true()};
    if (cfg.has_mask) {
        Expr least = sights.mask.words(at)[0], most = sights.mask.words(at)[1], hides = in.mask_form == mask_true_hides;
        Expr none = is_zero_word(most), all = !is_zero_word(least), read = st.sweep.mask_read;
        sight.some = !read || select(hides, !all, !none);
        sight.as_is = !st.mask_on || (read && select(hides, none, all));
    }
    if (cfg.has_bias) {
        Expr read = sights.bias_read;
        const auto zero = [&](int word) {
            Expr of_32 = is_zero_word(sights.bias.words(at)[word]);
            if (!cfg.has_bias_16()) return of_32;
            return select(st.bias_is_16, is_zero_word(sights.bias_16.words(at)[word]), of_32);
        };
        sight.some = sight.some && (!read || !zero(0));
        sight.as_is = sight.as_is && (!st.bias_on || (read && zero(1)));
    }
    return sight;
}

// A bias with other elements at both ends of the task's first row is taken to hide nothing in whole blocks.
void AttentionBuilder::define_bias_read() {
    const auto tells = [&](const Expr &key) {
        Expr at = clamp(key, 0, in.max_kv_len - 1);
        const auto dense_and_tells = [&](const Expr &dense, const Func &tensor, ElementType type) {
            Expr hides = hiding_word(type), word = reinterpret(hides.type(), of_row(tensor, 0, at));
            return dense && (is_zero_word(word) || word == hides);
        };
        Expr result = dense_and_tells(st.prefill.bias_dense, in.bias, ElementType::f32);
        return cfg.has_bias_16()
                   ? select(st.bias_is_16, dense_and_tells(st.prefill.bias_16_dense, in.bias_16, cfg.dtype), result)
                   : result;
    };
    Tuple seen = st.sweep.seen_range(st.t, st.sp);
    st.sweep.bias_read(st.t, st.sp) =
        st.bias_on && in.max_kv_len >= cfg.swept_keys() && (tells(seen[0]) || tells(seen[1] - 1));
}

// Prefill sweeps over the rows of the lines of swept_tasks: there t is a line.
void AttentionBuilder::define_sweep() {
    MaskSweep &sweep = st.sweep;
    const Func own_table = task_table;
    const auto read_tasks = [&](Func &fields) {
        if (!row_lanes) return;
        fields(st.d, st.t) = in.tasks(st.d, inside(in.swept_tasks(st.t), in.num_tasks));
        task_table = fields;
    };
    read_tasks(sweep.fields);
    define_ends();
    read_tasks(sweep.class_fields);
    if (row_lanes) define_classes();
    task_table = own_table;
}

void AttentionBuilder::define_ends() {
    MaskSweep &sweep = st.sweep;
    const int keys = cfg.swept_keys();
    const Range seen_range = seen_by_position();
    sweep.mask_read =
        cfg.has_mask ? st.mask_on && st.prefill.mask_dense && in.max_kv_len >= keys : Internal::const_false();
    sweep.seen_range(st.t, st.sp) = {seen_range.seen_begin, seen_range.seen_end};
    Tuple range = sweep.seen_range(st.t, st.sp);
    if (cfg.has_bias) {
        define_bias_read();
        sweep.sights.bias_read = sweep.bias_read(st.t, st.sp);
    }
    Expr read = cfg.has_bias ? sweep.mask_read || sweep.sights.bias_read : sweep.mask_read;
    sweep.num_chunks(st.t, st.sp) = select(read, ceil_div(range[1] - range[0], keys), 0);

    const auto first = [&](const Expr &chunk) { return min(range[0] + chunk * keys, in.max_kv_len - keys); };
    define_sights(sweep.sights, Internal::const_true(), 1, [&](const Expr &) { return first(st.kb); },
                  {st.kb, st.t, st.sp});
    sweep.chunks = RDom(0, ceil_div(in.max_kv_len, keys), "swept_chunks");
    sweep.chunks.where(sweep.chunks < sweep.num_chunks(st.t, st.sp));
    Args lane{st.u, st.e, st.t, st.sp}, end{st.e, st.t, st.sp};
    Expr key = first(sweep.chunks) + st.u;
    const Sight seen = sight(sweep.sights, {st.u, Expr(sweep.chunks), st.t, st.sp});
    // The last chunk may begin with keys of the one before.
    Expr counted = seen.as_is && key >= range[0] + sweep.chunks * keys, counts = st.e == MaskSweep::as_is_count;
    Expr is_end = select(st.e < MaskSweep::as_is_first, seen.some, seen.as_is);
    sweep.lane_ends(vars(lane)) = select(counts, 0, no_key);
    Expr so_far = sweep.lane_ends(lane);
    sweep.lane_ends(vars(lane)) = select(counts, so_far + select(counted, 1, 0),
                                         max(so_far, select(is_end, select(st.e % 2 == 0, -key, key), no_key)));
    sweep.over_u = RDom(0, keys, "swept_lanes");
    const auto of_lane = [&](const Expr &e) { return sweep.lane_ends(sweep.over_u, e, st.t, st.sp); };
    sweep.ends(vars(end)) = no_key;
    sweep.ends(vars(end)) = max(sweep.ends(end), of_lane(st.e));
    sweep.as_is_keys(st.t, st.sp) = 0;
    sweep.as_is_keys(st.t, st.sp) += of_lane(MaskSweep::as_is_count);
    Expr end_of_keys = sweep.ends(clamp(st.e, 0, MaskSweep::num_ends - 1), st.t, st.sp);
    Expr looked = cast<int>(sweep.num_chunks(st.t, st.sp) > 0);
    sweep.results(vars(end)) =
        select(st.e < MaskSweep::num_ends, end_of_keys, st.e == MaskSweep::as_is_count, sweep.as_is_keys(st.t, st.sp),
               st.e == MaskSweep::looked, looked, cfg.has_bias ? cast<int>(sweep.sights.bias_read) : Expr(0));
}

// For the blocks of `full`, where the ends do not tell.
void AttentionBuilder::define_classes() {
    MaskSweep &sweep = st.sweep;
    const Func own_ranges = range_table;
    range_table = sweep.block_range;
    sweep.block_range(st.t, st.sp) = blocks_of(st.t);
    Expr found = class_of_block(sweep.block, first_key(st.full, st.kb));
    sweep.steps = RDom(0, in.max_kv_len / cfg.kv_block, "classed_steps");
    sweep.steps.where(sweep.steps < select(range(mixed_steps) > 0, range(full_steps), 0));
    sweep.classes(st.kb, st.t, st.sp) = cfg.has_as_is_steps() ? cast<uint8_t>(plain_block) : undef<uint8_t>();
    sweep.classes(sweep.steps, st.t, st.sp) =
        Internal::substitute(st.kb.name(), Expr(sweep.steps), cast<uint8_t>(found));
    range_table = own_ranges;
    if (!cfg.has_as_is_steps()) return;
    Expr last = in.max_kv_len / cfg.kv_block, least = sweep.classes(last, st.t, st.sp);
    sweep.all_steps = RDom(0, last, "all_steps");
    sweep.classes(last, st.t, st.sp) = min(least, sweep.classes(sweep.all_steps, st.t, st.sp));
}

Expr AttentionBuilder::least_class(const Expr &swept) const {
    return cast<int>(st.sweep.classes(in.max_kv_len / cfg.kv_block, swept, st.sp));
}

// The steps of `plain` and those of `full`: of one of them alone where no block needs a class.
std::pair<Expr, Expr> AttentionBuilder::steps_by_class(const Range &range, const Expr &full_steps,
                                                       const Expr &swept) const {
    const auto result = [&](int e) { return st.sweep.results(e, swept, st.sp); };
    Expr last = result(MaskSweep::as_is_last), keys = result(MaskSweep::as_is_count);
    Expr first = -result(MaskSweep::as_is_first);
    Expr nothing_on = !st.mask_on && !st.bias_on;
    Expr no_gap =
        last - keys < first && first <= range.full_begin && last >= range.full_begin + full_steps * cfg.kv_block - 1;
    return {select(nothing_on || keys > 0, full_steps, 0), select(nothing_on || (keys > 0 && no_gap), 0, full_steps)};
}

// What the sweep tells narrows the range, at its ends key by key: there row_block keys more may go through `masked`.
AttentionBuilder::Range AttentionBuilder::narrowed(const Range &range, const Expr &swept) const {
    const auto first = [&](int end) { return -st.sweep.results(end, swept, st.sp); };
    const auto behind = [&](int end) { return st.sweep.results(end, swept, st.sp) + 1; };
    using S = MaskSweep;
    Expr looked = st.sweep.results(S::looked, swept, st.sp) != 0;
    Range result;
    result.seen_begin = select(looked, clamp(first(S::seen_first), range.seen_begin, range.seen_end), range.seen_begin);
    result.seen_end = select(looked, clamp(behind(S::seen_last), result.seen_begin, range.seen_end), range.seen_end);
    Expr begin = clamp(range.full_begin, result.seen_begin, result.seen_end),
         as_is_begin = max(begin, first(S::as_is_first));
    Expr end = min(range.full_end, result.seen_end), as_is_end = min(end, behind(S::as_is_last));
    result.full_begin = select(looked && as_is_begin <= result.seen_begin + cfg.row_block, as_is_begin, begin);
    result.full_end = select(looked && as_is_end + cfg.row_block >= result.seen_end, as_is_end, end);
    return result;
}

// For the block that begins with the key `first`.
Expr AttentionBuilder::class_of_block(BlockSights &sights, const Expr &first) {
    const int keys = cfg.swept_keys();
    sights.keys.bias_read = st.sweep.results(MaskSweep::looked_at_bias, st.t, st.sp) != 0;
    define_sights(
        sights.keys, range(mixed_steps) > 0, (cfg.kv_block + keys - 1) / keys,
        [&](const Expr &chunk) { return first + min(chunk * keys, cfg.kv_block - keys); }, in_step({}));
    const Sight seen = sight(sights.keys, in_step({Expr(st.sweep.over_u)}));
    Args at = in_step({});
    sights.some_seen(vars(at)) = cast<uint8_t>(0);
    sights.some_seen(vars(at)) = max(sights.some_seen(at), cast<uint8_t>(seen.some));
    sights.all_as_is(vars(at)) = cast<uint8_t>(1);
    sights.all_as_is(vars(at)) = min(sights.all_as_is(at), cast<uint8_t>(seen.as_is));
    return select(sights.some_seen(at) == cast<uint8_t>(0), hidden_block, sights.all_as_is(at) == cast<uint8_t>(0),
                  mixed_block, plain_block);
}

}  // namespace heed
