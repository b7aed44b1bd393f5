#include "schedules/fit_rows.h"

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

}  // namespace heed
