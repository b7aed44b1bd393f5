// What users' score functions ask of blocks and make of logits.
#include <limits>

#include "generators/ops/attention_device.h"

namespace heed {

using namespace Halide;

// What a user's score function makes of a logit. What the bias hides stays hidden.
Expr AttentionDevice::by_user(const Expr &logit, const ScorePlace &place) const {
    Expr changed = logit;
    if (config.score_mod.logit) {
        LogitChanges of_user;
        of_user.user = [&](const Expr &x) { return config.score_mod.logit(x, place, score_buffers); };
        changed = changed_logit(logit, of_user, LogitUnits::log16).value;
        if (config.has_bias) changed = hidden_unless(!is_negative_infinity(logit), changed);
    }
    if (!config.score_mod.visible) return changed;
    return hidden_unless(config.score_mod.visible(place, score_buffers), changed);
}

// What score functions ask of a block: its sequence and first head, its first and last query, the number of keys, and
// what is added to a query's number to get its position.
std::vector<Expr> AttentionDevice::asked_of(const std::function<Expr(SequenceField)> &read) const {
    const Block at = block_of(down);
    const Expr last = query(tile.products.rows - 1, down).i;
    return {at.sequence,           at.first_head,
            query(0, down).i,      min(last, read(sequence_q_len) - 1),
            read(sequence_kv_len), read(sequence_position_offset)};
}

// The first steps that no row sees are not the block's. Each of some threads tests every n-th step.
void AttentionDevice::define_first_seen() {
    over_searched.where(over_searched < block_values(down)[7]);
    const Expr none = std::numeric_limits<int>::max(), step = over_searched * searchers + searcher;
    const Expr is_seen = is_seen_block(block_values(down)[6] + step * tile.products.columns);
    first_seen(searcher, down) = none;
    first_seen(searcher, down) = min(first_seen(searcher, down), select(is_seen, step, none));
}

// Whether some row of the block may see some key of the step that begins with a key, by the user's test.
Expr AttentionDevice::is_seen_block(const Expr &first_key) const {
    std::vector<Expr> of = asked_of([&](SequenceField which) { return field(which, block_of(down).sequence); });
    for (size_t n = 0; block_values.defined() && n < of.size(); n++) of[n] = block_values(down)[n];
    const Expr first_head = of[1], first_i = of[2], last_i = of[3], kv_len = of[4], offset = of[5];
    const Expr last_key = min(first_key + tile.products.columns, kv_len) - 1;
    return config.score_mod.block_visible({of[0], first_head, first_head + heads_of_row() - 1, first_i, last_i,
                                           first_key, last_key, first_i + offset, last_i + offset},
                                          score_buffers);
}

}  // namespace heed
