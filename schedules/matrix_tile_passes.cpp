#include "schedules/matrix_tile_passes.h"

#include <algorithm>

#include "generators/lowering/ask_rows.h"
#include "generators/lowering/bf16_product.h"
#include "generators/lowering/bf16_tiles.h"
#include "generators/lowering/first_blocks.h"
#include "generators/lowering/keep_awake.h"
#include "generators/lowering/pipeline_tiles.h"
#include "generators/lowering/shorten_loops.h"
#include "generators/lowering/start_sums.h"
#include "schedules/asked_rows.h"
#include "schedules/attention_prefetches.h"
#include "schedules/fit_rows.h"

namespace heed {

using namespace Halide;
using Halide::Internal::Variable;

namespace {

// The first part of the keys makes the queries ready, the last one the results.
void add_parts(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const auto only_if = [&](const Expr &on, const std::vector<std::string> &loops, int extent) {
        passes->add<ShortenLoops>(loops, select(on, extent, 0));
    };
    const auto loop = [](const Func &f, const std::string &name) { return f.name() + ".s0." + name; };
    const int vectors = config.row_block / config.lanes;
    only_if(loaded(st.fields.name(), task_part_begin) == 0, {loop(st.prefill.q_lanes, st.row.name() + ".ro")}, vectors);
    only_if(loaded(st.fields.name(), task_part_end) == no_part_end,
            {loop(st.row_result, st.row.name() + ".ro"), loop(st.prefill.out_rows, st.row.name() + ".ro")}, vectors);
}

// Products of zeros in those loops of a task that are long and make no products.
void keep_awake(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const auto loop = [](const Func &f, const std::string &name) { return f.name() + ".s0." + name; };
    if (config.packs_in_steps()) {
        std::vector<KeepAwake::Loop> of_steps;
        for (const BlockChain *chain : st.chains) {
            of_steps.insert(of_steps.end(), {{loop(chain->packed.k, st.k.name()), 16},
                                             {loop(chain->packed.v, st.c.name()), 1},
                                             {loop(chain->bf16.weight_pairs, st.k.name()), 16}});
        }
        passes->add_exactly<KeepAwake>(static_cast<int>(of_steps.size()) * (1 + copies_for_fewer_rows(config)),
                                       "loops that keep tiles awake", of_steps);
        return;
    }
    const std::vector<KeepAwake::Loop> loops{{loop(st.prefill.q_lanes, st.d.name() + ".db"), 1},
                                             {loop(st.masked.bf16.weight_pairs, st.k.name()), 16},
                                             {loop(st.prefill.out_rows, st.row.name() + ".ro"), 1},
                                             {st.out.name() + ".s1." + st.results.x.name(), 16}};
    passes->add_exactly<KeepAwake>(static_cast<int>(loops.size()), "loops that keep tiles awake", loops);
    std::vector<KeepAwake::Loop> squares;  // as many loops as there are forms of biases and masks
    for (const BlockChain *chain : st.chains) {
        const std::string keys = st.k.name() + ".ko";
        squares.push_back({loop(chain->biases, keys), chain->prefill.reads_bias_pairs() ? 2 : 4});
        squares.push_back({loop(chain->visible, keys), config.reads_mask_words() ? 2 : 4});
    }
    passes->add<KeepAwake>(squares);
}

// Where logits are products, or only sums of them and something, the weights of keys are made while tiles multiply.
void add_tiles(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const StartedSums outputs{st.state.name(), "started"};
    Expr goes_on = Internal::const_false();
    if (config.takes_parts()) goes_on = loaded(st.fields.name(), task_part_begin) != 0;
    passes->add_exactly<StartSums>(1, "sums to start", outputs, config.state_slots(), goes_on);
    size_t products = 2 * st.chains.size();
    std::vector<const BlockChain *> pipelined;
    if (config.has_as_is_steps()) pipelined = {&st.as_is, &st.added};
    if (config.packs_first() && !config.changes_logits()) pipelined = {&st.full};
    std::vector<RowLines> asks;
    if (config.asks_for_rows() == pipelined.empty()) throw CompileError("other steps ask for rows than the table says");
    if (!pipelined.empty()) {
        asks = rows_of_tasks(st, config);
        AskRows::Loops loops{
            st.state.name(),
            {{st.loop(st.masked, st.masked.steps.y), st.masked.bf16.weight_pairs.name() + ".s0." + st.k.name()}},
            {}};
        for (const BlockChain *chain : pipelined) loops.askers.push_back(st.loop(*chain, chain->steps.y));
        passes->add_exactly<AskRows>(1, "masked steps that ask for rows", loops, asks);
    }
    for (const BlockChain *chain : pipelined) {
        products -= 2;
        const BlockChain &ch = *chain;
        PipelineTiles::Step step;
        step.loop = st.loop(ch, ch.steps.y);
        step.first_key = ch.first_key.name();
        step.product = ch.product.name();
        step.logits = ch.added ? ch.logits.name() : "";
        step.maxima = ch.bf16.max_parts.name();
        step.reference = ch.prefill.reference.name();
        step.weights = ch.bf16.weight_pairs.name();
        step.nonfinite_end = ch.added ? ch.prefill.nonfinite_end.name() : "";
        step.outputs = ch.block_out.name();
        step.started = outputs;
        step.asks = asks;
        step.sums = ch.bf16.sum_parts.name();
        step.exact_sum = ch.bf16.exact_sum.name();
        step.may_keep = Bf16Block::fits_unit(Variable::make(Float(32), "scale"));
        step.huge_reference = Bf16Block::huge_reference;
        step.large_weight = Bf16Block::large_weight;
        passes->add_exactly<PipelineTiles>(1, "loops over blocks of keys to pipeline", step);
    }
    passes->add_exactly<LowerBf16Tiles>(static_cast<int>(products) * (1 + copies_for_fewer_rows(config)),
                                        "products of bf16 that become matrix tiles",
                                        std::vector<std::string>{st.masked.block_out.name()}, outputs);
}

}  // namespace

void add_matrix_tiles(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    add_tiles(passes, st, config);
    if (config.takes_parts()) add_parts(passes, st, config);
    passes->add_exactly<FirstBlocks>(static_cast<int>(st.kept.size()), "arrays that tasks keep", st.kept, true);
    keep_awake(passes, st, config);
}

}  // namespace heed
