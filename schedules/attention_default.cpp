// All stages at root. The bounds of the keys come from lengths in memory, so the range of each scratch coordinate is
// stated here: what a schedule elsewhere knows from its loops.
#include "schedules/schedules.h"

namespace heed {

using namespace Halide;

namespace {

void sights_at_root(KeySights &sights) {
    for (KeySights::Source *source : sights.defined()) source->words.compute_root();
}

}  // namespace

Passes schedule_attention_default(AttentionStages &st, const AttentionConfig &config) {
    st.fields.compute_root();
    st.row_range.compute_root();
    st.block_range.compute_root();
    st.q_rows.compute_root();
    if (config.phase == Phase::prefill) {
        st.prefill.q_lanes.compute_root();
    }
    if (config.sweeps()) {
        MaskSweep &sweep = st.sweep;
        sights_at_root(sweep.sights);
        sights_at_root(sweep.block.keys);
        for (Func *f : {&sweep.fields, &sweep.bias_read, &sweep.seen_range, &sweep.num_chunks, &sweep.lane_ends,
                        &sweep.ends, &sweep.as_is_keys, &sweep.results, &sweep.class_fields, &sweep.block_range,
                        &sweep.block.some_seen, &sweep.block.all_as_is, &sweep.classes}) {
            if (f->defined()) f->compute_root();
        }
    }
    for (BlockChain *chain : st.chains) {
        sights_at_root(chain->sights.keys);
        for (Func *f : {&chain->slots, &chain->biases, &chain->visible, &chain->kept, &chain->raw_logits,
                        &chain->value_weights, &chain->k_rows.rows, &chain->v_rows.rows, &chain->prefill.exponents,
                        &chain->prefill.nonfinite_end, &chain->prefill.number_end, &chain->prefill.all_seen,
                        &chain->prefill.value_sums, &chain->sights.some_seen, &chain->sights.all_as_is}) {
            if (f->defined()) f->compute_root();
        }
        for (Func *f : {&chain->product, &chain->logits, &chain->block_max, &chain->weights, &chain->block_sum,
                        &chain->value_tile, &chain->block_out}) {
            if (f->defined()) f->compute_root();
        }
    }
    st.state.compute_root();
    st.row_result.compute_root();
    if (config.phase == Phase::prefill) {
        st.prefill.out_rows.compute_root();
    } else {
        st.decode.split_state.compute_root();
        st.decode.split_max.compute_root();
        st.decode.split_factor.compute_root();
        st.decode.merged.compute_root();
    }
    Passes passes;
    add_attention_passes(&passes, config, {});
    return passes;
}

}  // namespace heed
