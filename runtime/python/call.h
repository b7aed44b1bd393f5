// What the arrays and fields of one heed.attention say, as a problem and its arguments.
#pragma once

#include <vector>

#include "heed/fields.h"
#include "runtime/python/array.h"

namespace heed::python {

// The arrays of a call; NULL when not given.
struct CallArrays {
    const Array *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr, *lse = nullptr, *mask = nullptr,
                *bias = nullptr, *k_scale = nullptr, *v_scale = nullptr, *device_status = nullptr, *workspace = nullptr;
#define HEED_DECLARE(name, ...) const Array *name = nullptr;
    HEED_METADATA_ARRAYS(HEED_DECLARE)
    HEED_HEAD_ARRAYS(HEED_DECLARE)
#undef HEED_DECLARE
    const Array *score_buffers[HEED_MAX_SCORE_BUFFERS] = {};
};

class AttentionCall {
public:
    // `arrays`: q, k, v and what else there is of CallArrays. `fields`: fields of heed_problem, the dropout's seed and
    // offset, and heads_first, out_heads_first: q, k and v, and out, are [batch, heads, len, head_dim]. Shapes must fit
    // together; all that one struct alone can tell is left to heed_plan_create and heed_execute.
    AttentionCall(const nanobind::dict &arrays, const nanobind::dict &fields);

    // The same in steps: settings, as many arrays at most, settle.
    explicit AttentionCall(size_t most_arrays) { arrays_.reserve(most_arrays); }
    void set(const nanobind::dict &fields);
    Array &add(const char *name, nanobind::handle object);
    void add_lengths(const char *name, const std::vector<int32_t> &values);  // which stay where they are
    void settle();

    AttentionCall(const AttentionCall &) = delete;
    AttentionCall &operator=(const AttentionCall &) = delete;

    const CallArrays &given() const { return given_; }
    const heed_problem &problem() const { return settings_.problem; }
    heed_args &args() { return settings_.args; }

    struct Settings {
        Problem problem;
        Args args;
        bool heads_first = false, out_heads_first = false;
    };
    Settings &settings() { return settings_; }

private:
    Array &take(const char *name, Array array);
    void check_devices() const;
    void set_metadata();
    void set_threads();
    void set_queries();
    void set_positions();
    void set_keys();
    void set_packed_keys(const Array &k, const Array &cu_seqlens);
    void set_paged_keys(const Array &k, const Array &page_table);
    void set_contiguous_keys(const Array &k);
    void set_scale(const char *name, const Array *scale, heed_tensor *target) const;
    bool set_score_input(const Array *array, int32_t shape[4], heed_layout *layout, heed_tensor *target) const;
    const float *values_per_head(const Array *array) const;
    void set_scores();
    void set_score_buffers();
    void set_results();
    int32_t longest(const char *field, const Array &cu_seqlens) const;

    std::vector<Array> arrays_;
    CallArrays given_;
    nanobind::dict fields_;
    Settings settings_;
};

}  // namespace heed::python
