// What the arrays and fields of one heed.attention say, as a problem and its arguments.
#pragma once

#include <vector>

#include "array.h"

namespace heed::python {

class AttentionCall {
public:
    // `arrays`: q, k, v and what else there is of out, lse, mask, bias, k_scale, v_scale, score_buffers[n],
    // device_status, workspace, HEED_METADATA_ARRAYS and HEED_HEAD_ARRAYS. `fields`: fields of heed_problem and the
    // dropout's seed and offset. Shapes must fit together; all that one struct alone can tell is left to
    // heed_plan_create and heed_execute.
    AttentionCall(const nanobind::dict &arrays, const nanobind::dict &fields);

    const Array *find(const char *name) const;  // NULL when not given

    const heed_problem &problem() const { return settings_.problem; }
    heed_args &args() { return settings_.args; }

    struct Settings {
        Problem problem;
        Args args;
    };

private:
    const Array &need(const char *name) const;
    void set_metadata();
    void set_queries();
    void set_positions();
    void set_keys();
    void set_packed_keys(const Array &k, const Array &cu_seqlens);
    void set_paged_keys(const Array &k, const Array &page_table);
    void set_contiguous_keys(const Array &k);
    void set_scale(const char *name, heed_tensor *target) const;
    bool set_score_input(const char *name, int32_t shape[4], heed_layout *layout, heed_tensor *target) const;
    const float *find_per_head(const char *name) const;
    void set_scores();
    void set_score_buffers();
    void set_results();
    int32_t longest(const char *field, const Array &cu_seqlens) const;

    std::vector<Array> arrays_;
    nanobind::dict fields_;
    Settings settings_;
};

}  // namespace heed::python
