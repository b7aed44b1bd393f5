// The last part of the algorithm: splits merged, rows normalised and written where they belong.
#include "generators/attention/builder.h"
#include "generators/attention/logits.h"

namespace heed {

using namespace Halide;

void AttentionBuilder::define_prefill_outputs() {
    auto state = [&](const Expr &x) { return st.state(st.row, x, st.t, 0); };
    define_result_of_lanes(state(slot_of(AttentionStages::row_max)), state);
}

// `sums`: the slots of the state but row_max, and the outputs, of all keys.
void AttentionBuilder::define_result_of_lanes(const Expr &row_max, const std::function<Expr(const Expr &)> &sums) {
    Expr row_sum = sums(slot_of(AttentionStages::row_sum)), exact_sum = row_sum;
    if (cfg.packs_kv()) {
        // A NaN that a row sees makes its row_sum minus infinity or NaN (bf16_weight), its exact_sum any number.
        Expr sees_nan = reinterpret<uint32_t>(row_sum) > Expr(0x7f800000u);
        exact_sum = sums(slot_of(AttentionStages::exact_sum));
        exact_sum = select(sees_nan, reinterpret<float>(Expr(0x7fc00000u)), exact_sum);
    }
    define_row_result(row_max, row_sum, exact_sum);
    define_transposed_out(sums(cfg.state_slots() + st.d));
}

// `sum` in (row, d, t), before it is normalised.
void AttentionBuilder::define_transposed_out(const Expr &sum) {
    st.prefill.out_lanes(st.row, st.d, st.t) = sum * st.row_result(st.row, st.t)[0];
    st.prefill.out_rows(st.d, st.row, st.t) =
        st.prefill.out_tiles.define(cfg.lanes, st.prefill.out_lanes, st.d, st.row, {st.t});
    define_out(st.prefill.out_rows(st.d, st.row, st.t));
}

// The state of each split, the splits of a task one after the other. `place` names an element of it: (row, x ..).
void AttentionBuilder::define_split_state(Args place) {
    st.decode.num_split_tasks = in.num_tasks * in.num_splits;
    Expr t = st.task / in.num_splits, split = st.task - t * in.num_splits;
    Args of_state = place;
    of_state.insert(of_state.end(), {clamp(t, 0, in.num_tasks - 1), clamp(split, 0, in.num_splits - 1)});
    place.push_back(st.task);
    st.decode.split_state(vars(place)) = st.state(of_state);
}

// Where that of a split of the task st.t is.
Expr AttentionBuilder::split_task(const Expr &split) const {
    return clamp(st.t * in.num_splits + split, 0, st.decode.num_split_tasks - 1);
}

// The merge of the splits, for all rows of a task at once.
void AttentionBuilder::define_wide_outputs() {
    using S = AttentionStages;
    st.decode.merged_fields(st.d, st.t) = in.tasks(st.d, st.t);
    task_table = st.decode.merged_fields;  // the merge is another loop over the tasks
    define_split_state({st.row, st.x});
    auto of_split = [&](const Expr &x, const Expr &sp) { return st.decode.split_state(st.row, x, split_task(sp)); };
    const auto maximum = [](const Expr &x, const Expr &y) { return max(x, y); };
    st.decode.define(
        {in.num_splits, [&](const Expr &sp) { return of_split(slot_of(S::row_max), sp); }, exp16_nonpositive, maximum},
        st.sp, {st.row, st.t});
    st.decode.add(st.decode.merged(st.row, st.x, st.t), of_split(st.x, st.decode.over_splits));
    define_result_of_lanes(st.decode.split_max(st.row, st.t),
                           [&](const Expr &x) { return st.decode.merged(st.row, x, st.t); });
}

void AttentionBuilder::define_decode_outputs() {
    using S = AttentionStages;
    task_table = in.tasks;  // the merge is another loop over the tasks
    head_table = Func();
    st.decode.blocks_per_task = blocks_per_task();
    define_split_state({st.row, st.x, st.rb});
    auto of_split = [&](const Expr &x, const Expr &sp) {
        return st.decode.split_state(st.row, x, st.rb, split_task(sp));
    };
    const auto maximum = [](const Expr &x, const Expr &y) { return max(x, y); };
    st.decode.define(
        {in.num_splits, [&](const Expr &sp) { return of_split(S::row_max, sp); }, exp16_nonpositive, maximum}, st.sp,
        {st.row, st.rb, st.t});
    st.decode.add(st.decode.merged(st.x, st.row, st.rb, st.t), of_split(st.x, st.decode.over_splits));
    Expr row_max = st.decode.split_max(st.row, st.rb, st.t), row_sum = 0.f;
    for (int u = 0; u < cfg.dot_lanes; u++) row_sum += st.decode.merged(cfg.dot_lanes + u, st.row, st.rb, st.t);
    define_row_result(row_max, row_sum, row_sum);
    Tuple result = st.row_result(st.row, st.rb, st.t);
    define_out(st.decode.merged(cfg.state_slots() + st.d, st.row, st.rb, st.t) * result[0] / result[2]);
}

// exact_sum: of the weights before they were rounded for the products, of which row_sum is the sum.
void AttentionBuilder::define_row_result(const Expr &row_max, const Expr &row_sum, const Expr &exact_sum) {
    const Expr sink = in.sink(head(st.row));
    const RowResult result = with_sink(row_max, row_sum, sink, LogitUnits::log16),
                    exact = with_sink(row_max, exact_sum, sink, LogitUnits::log16);
    Expr dropout_scale = cfg.has_dropout ? in.dropout_scale : Expr(1.f);
    if (row_lanes) {
        st.row_result(st.row, st.t) = {result.factor() * dropout_scale, exact.lse};
    } else {
        st.row_result(st.row, st.rb, st.t) = {result.scale * dropout_scale, exact.lse, result.total};
    }
}

// `value` in (d, row, t), in decode (d, row, rb, t). A task writes the rows that exist; no two tasks write the same
// one.
void AttentionBuilder::define_out(const Expr &value) {
    st.results = RDom({{0, cfg.row_block}, {0, in.num_tasks * blocks_per_task()}}, "results");
    Expr row = st.results.x, place = st.results.y, t = place, block = 0;
    if (cfg.task_blocks > 1) {
        // Not by %, of which bounds inference knows the range alone.
        Expr task = place / in.blocks_per_task;
        t = inside(task, in.num_tasks);
        block = clamp(place - task * in.blocks_per_task, 0, in.blocks_per_task - 1);
    }
    auto here = [&](const Expr &e) {
        return Internal::substitute({{st.row.name(), row}, {st.rb.name(), block}, {st.t.name(), t}}, e);
    };
    st.results.where(here(first_row() + st.row < num_rows()));
    if (cfg.takes_parts()) st.results.where(here(is_last_part()));
    if (cfg.task_blocks > 1) st.results.where(here(st.rb < field(task_num_blocks)));
    Expr token = inside(field(task_first_q) + position(st.row), in.q_capacity);
    Expr sequence = inside(field(task_q_batch), in.q_batch);
    st.out(st.d, st.h, st.s, st.b) = Tuple(undef(stored_type(cfg.dtype)), undef<float>());
    st.out(st.d, here(head(st.row)), here(token), here(sequence)) = {from_float(cfg.dtype, here(value)),
                                                                     here(Expr(st.row_result(of_rows({st.row}))[1]))};
}

}  // namespace heed
