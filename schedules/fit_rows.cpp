#include "schedules/fit_rows.h"

#include <algorithm>
#include <string>
#include <vector>

#include "generators/lowering/shorten_loops.h"
#include "generators/lowering/trim_rows.h"
#include "schedules/attention_prefetches.h"

namespace heed {

using namespace Halide;
using Halide::Internal::Variable;

namespace {

// Rows of a task's block that there are, by its line of the table.
Expr rows_left(const Func &fields, const AttentionConfig &config) {
    const auto heads = [](const char *tensor) { return Variable::make(Int(32), std::string(tensor) + ".extent.1"); };
    Expr of_position = config.wide_group ? heads("q") / heads("k") : Expr(1);
    return loaded(fields.name(), task_q_len) * of_position - loaded(fields.name(), task_first_row);
}

}  // namespace

int copies_for_fewer_rows(const AttentionConfig &config) {
    const int fewer = config.row_block / config.lanes - 1;
    if (!config.bf16_tiles) return config.per_logit() ? 1 : fewer;
    return config.packs_in_steps() ? std::min(fewer, 2) : 0;
}

void fit_rows(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const std::string row = st.row.name();
    TrimRows::Rows rows;
    rows.block = config.row_block;
    rows.lanes = config.lanes;
    rows.left = rows_left(st.fields, config);
    rows.most_kept = copies_for_fewer_rows(config);
    if (config.bf16_tiles) {
        rows.loops = {st.prefill.q_lanes.name() + ".s0." + row + ".ro"};
        rows.single = "." + row;
    } else {
        rows.loops = {row + ".ro"};
        rows.stages = {st.state.name()};
    }
    std::vector<std::string> steps;
    for (const BlockChain *ch : st.chains) {
        const Bf16Block &of = ch->bf16;
        const Func &maxima = config.packs_kv() ? of.max_parts : ch->block_max;
        steps.push_back(ch->steps.y.name());
        for (const Func &f : {ch->biases, ch->visible, ch->product, ch->raw_logits, ch->logits, maxima, ch->weights,
                              of.weight_pairs, ch->kept, ch->block_sum, of.sum_parts, of.exact_sum, ch->value_weights,
                              ch->value_tile, ch->prefill.value_sums, ch->block_out}) {
            rows.stages.push_back(f.name());
        }
        for (const Func &f : {ch->visible, ch->kept, ch->logits}) {
            rows.loops.push_back(f.name() + ".s0." + row + "." + row);
        }
        rows.filled.push_back(maxima.name());
    }
    passes->add_exactly<TrimRows>(static_cast<int>(steps.size()), "loops over blocks of keys to trim rows in", rows,
                                  steps);
    const auto vectors_of = [&](const Expr &left) {
        Expr computed = config.row_block / config.lanes;
        for (int kept = rows.most_kept; kept > 0; kept--) computed = select(left > kept * config.lanes, computed, kept);
        return computed;
    };
    passes->add<ShortenLoops>(rows.loops, vectors_of(rows.left));
    if (config.wide_group) {
        const std::vector<std::string> loops{st.row.name() + ".result_ro"};
        passes->add<ShortenLoops>(loops, vectors_of(rows_left(st.decode.merged_fields, config)));
    }
}

}  // namespace heed
