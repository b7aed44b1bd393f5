// All stages at root. The bounds of the keys come from lengths in memory, so the range of each scratch coordinate is
// stated here: what a schedule elsewhere knows from its loops.
#include "schedules/schedules.h"

namespace heed {

using namespace Halide;

Passes schedule_attention_default(AttentionStages &st, const AttentionConfig &config) {
    st.fields.compute_root();
    st.row_range.compute_root();
    st.block_range.compute_root();
    st.q_rows.compute_root();
    if (config.phase == Phase::prefill) {
        st.prefill.q_lanes.compute_root();
    }
    for (BlockChain *chain : {&st.full, &st.masked}) {
        for (Func *f :
             {&chain->slots, &chain->biases, &chain->visible, &chain->kept, &chain->raw_logits, &chain->value_weights,
              &chain->k_rows.rows, &chain->v_rows.rows, &chain->prefill.exponents, &chain->prefill.special_end,
              &chain->prefill.number_end, &chain->prefill.seen_end, &chain->prefill.d_end}) {
            if (f->defined()) f->compute_root();
        }
        for (Func *f : {&chain->product, &chain->logits, &chain->block_max, &chain->weights, &chain->block_sum,
                        &chain->value_tile, &chain->block_out}) {
            f->compute_root();
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
