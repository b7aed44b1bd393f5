#include "schedules/fit_rows.h"

#include <algorithm>
#include <string>
#include <vector>

#include "generators/lowering/shorten_loops.h"
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

void fit_rows(Passes *passes, const AttentionStages &st, const AttentionConfig &config, TrimRows::Rows rows) {
    const int vectors = config.row_block / config.lanes;
    rows.block = config.row_block;
    rows.lanes = config.lanes;
    rows.left = rows_left(st.fields, config);
    std::vector<std::string> steps;
    for (const BlockChain *ch : st.chains) steps.push_back(ch->steps.y.name());
    passes->add_exactly<TrimRows>(static_cast<int>(steps.size()), "loops over blocks of keys to trim rows in", rows,
                                  steps);
    const auto vectors_of = [&](const Expr &left) {
        Expr computed = vectors;
        for (int kept = rows.most_kept; kept > 0; kept--) computed = select(left > kept * config.lanes, computed, kept);
        return computed;
    };
    passes->add<ShortenLoops>(rows.loops, vectors_of(rows.left));
    if (config.wide_group) {
        const std::vector<std::string> loops{st.row.name() + ".result_ro"};
        passes->add<ShortenLoops>(loops, vectors_of(rows_left(st.decode.merged_fields, config)));
    }
}

// Of rows that a copy leaves out maxima stay the lowest ones: so references do, too, no sum is scaled for them, and no
// logit looks huge. What `reference` reads of them must be initialised: loops of the state itself go over all rows.
void fit_register_rows(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const std::string row = st.row.name();
    TrimRows::Rows rows;
    rows.most_kept = copies_for_fewer_rows(config);
    rows.loops = {row + ".ro"};
    rows.stages = {st.state.name()};
    for (const BlockChain *ch : st.chains) {
        const Bf16Block &of = ch->bf16;
        const Func &maxima = config.packs_kv() ? of.max_parts : ch->block_max;
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
    fit_rows(passes, st, config, rows);
}

}  // namespace heed
