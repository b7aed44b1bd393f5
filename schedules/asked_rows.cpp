#include "schedules/asked_rows.h"

#include <functional>

#include "generators/lowering/ask_rows.h"
#include "schedules/attention_prefetches.h"
#include "schedules/fit_rows.h"

namespace heed {

using namespace Halide;
using Halide::Internal::make_const;
using Halide::Internal::Variable;

std::vector<RowLines> rows_of_tasks(const AttentionStages &st, const AttentionConfig &config) {
    const int bytes = stored_type(config.dtype).bytes();
    const auto rows = [&](const std::string &buffer, int length, Wanted wanted, const Expr &when,
                          const std::function<Expr(int)> &field) {
        const auto of_buffer = [&](const char *what, int dimension) {
            return Variable::make(Int(32), buffer + what + std::to_string(dimension));
        };
        const auto along = [&](const Expr &index, int dimension) {
            return cast<int64_t>(index) * cast<int64_t>(of_buffer(".stride.", dimension)) * make_const(Int(64), bytes);
        };
        const Expr first = along(field(task_first_q) + field(task_first_row), 2) + along(field(task_q_batch), 3) +
                           along(field(task_head), 1);
        const Expr elements = config.any_head_dim() ? of_buffer(".extent.", 0) : Expr(length);
        const Expr lines = Internal::simplify((elements * bytes + (line_bytes - 1)) / line_bytes);
        const Expr last = select(when, min(field(task_q_len) - field(task_first_row), config.row_block) - 1, 0);
        return RowLines{buffer, config.row_block, lines, first, along(1, 2), last, wanted};
    };
    const Expr task = Variable::make(Int(32), st.out.name() + ".s1." + st.results.y.name());
    const Expr next = min(task + 1, Variable::make(Int(32), "tasks.extent.1") - 1);
    const Expr fields = cast<int64_t>(next) * cast<int64_t>(Variable::make(Int(32), "tasks.stride.1"));
    // A task with parts of its keys writes out in the last part; the next task's q is asked for in the first.
    const auto field = [&](int n) { return loaded(st.fields.name(), n); };
    Expr writes = Internal::const_true(), begins = Internal::const_true();
    if (config.takes_parts()) {
        writes = field(task_part_end) == no_part_end;
        begins = field(task_part_begin) == 0;
    }
    return {rows(st.out.name() + ".0", config.head_dim_v, Wanted::to_write, writes, field),
            rows("q", config.head_dim, Wanted::in_l2, begins, [&](int n) { return loaded("tasks", fields + n); })};
}

// Tiles of keys of all steps ask, for a row now and then. The time of it, a burst by the runtime before the task being
// 1, Zen 5, 2 threads, f32: 8 sequences of 512 tokens, 12 heads of 64 0.97; 6 of 270, 32 heads of 128 0.95; 16 of 197,
// 12 heads of 64 0.94; 2048 causal tokens, 32 / 8 heads of 128 0.98; bf16 0.98 to 1.0; a mask of 1024 tokens 1.01.
void add_asked_rows(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    AskRows::Loops loops{st.state.name(), {}, {}};
    for (const BlockChain *chain : st.chains) {
        const Func &products = config.has_raw_logits() ? chain->raw_logits : chain->logits;
        loops.in_order.push_back({st.loop(*chain, chain->steps.y), products.name() + ".s0." + st.k.name() + ".ko"});
    }
    const int chains = static_cast<int>(st.chains.size());
    passes->add_exactly<AskRows>(chains * (1 + copies_for_fewer_rows(config)), "loops over keys that ask for rows",
                                 loops, rows_of_tasks(st, config));
}

}  // namespace heed
