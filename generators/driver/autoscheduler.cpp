#include "generators/driver/autoscheduler.h"

#include <dlfcn.h>

#include <filesystem>

namespace heed {

using namespace Halide;

namespace {

constexpr int batch = 1, heads = 32, kv_heads = 8, keys = 2048, dummy = 1, threads = 2;

void estimate_inputs(AttentionKernel &kernel, int queries, int tasks) {
    const AttentionConfig &c = kernel.config;
    const int row = c.any_head_dim() ? 128 : c.head_dim, row_v = c.any_head_dim() ? 128 : c.head_dim_v;
    const int logits[] = {c.has_bias || c.has_mask ? keys : dummy, c.has_bias || c.has_mask ? queries : dummy};
    kernel.q.set_estimates({{0, row}, {0, heads}, {0, queries}, {0, batch}});
    kernel.k.set_estimates({{0, row}, {0, kv_heads}, {0, keys}, {0, batch}});
    kernel.v.set_estimates({{0, row_v}, {0, kv_heads}, {0, keys}, {0, batch}});
    for (ImageParam *scales : {&kernel.k_scale, &kernel.v_scale}) {
        scales->set_estimates({{0, kv_heads}, {0, keys}, {0, batch}});
    }
    for (ImageParam *matrix : {&kernel.mask, &kernel.bias, &kernel.bias_16}) {
        matrix->set_estimates({{0, logits[0]}, {0, logits[1]}, {0, heads}, {0, batch}});
    }
#define HEED_ESTIMATE(name, ...) kernel.name.set_estimates({{0, heads}});
    HEED_ESTIMATE(sink)
    HEED_HEAD_INPUTS(HEED_ESTIMATE)
#undef HEED_ESTIMATE
    for (ImageParam &words : kernel.score_buffers) words.set_estimates({{0, keys}});
    kernel.page_table.set_estimates({{0, dummy}, {0, batch}});
    kernel.tasks.set_estimates({{0, static_cast<int>(num_task_fields)}, {0, tasks}});
    kernel.key_blocks.set_estimates({{0, dummy}, {0, dummy}});
    kernel.swept_tasks.set_estimates({{0, dummy}});
    kernel.states.set_estimates({{0, dummy}, {0, dummy}, {0, dummy}, {0, dummy}});
}

void estimate_scalars(AttentionKernel &kernel, int queries) {
#define HEED_ESTIMATE(name, type) kernel.name.set_estimate(0);
    HEED_ATTENTION(HEED_IGNORE, HEED_ESTIMATE, HEED_IGNORE)
#undef HEED_ESTIMATE
    kernel.batch.set_estimate(batch);
    kernel.max_q_len.set_estimate(queries);
    kernel.max_kv_len.set_estimate(keys);
    kernel.scale.set_estimate(0.1f);
    kernel.split_len.set_estimate(keys);
    kernel.num_splits.set_estimate(1);
    kernel.blocks_per_task.set_estimate(1);
    kernel.dropout_scale.set_estimate(1);
}

// Plugins are next to libHalide.
std::string plugin(const std::string &name) {
    Dl_info halide;
    if (dladdr(reinterpret_cast<void *>(&Halide::load_plugin), &halide) == 0) return name;
    return std::filesystem::path(halide.dli_fname).parent_path() / ("libautoschedule_" + name + ".so");
}

}  // namespace

void apply_autoscheduler(const std::string &name, AttentionKernel &kernel, Pipeline &pipeline, const Target &target) {
    const AttentionConfig &c = kernel.config;
    const int queries = c.phase == Phase::prefill ? keys : 1;
    estimate_inputs(kernel, queries, heads * ((queries + c.row_block - 1) / c.row_block));
    estimate_scalars(kernel, queries);
    kernel.stages.out.set_estimates({{0, c.any_head_dim() ? 128 : c.head_dim_v}, {0, heads}, {0, queries}, {0, batch}});
    load_plugin(plugin(name == "Adams2019" ? "adams2019" : "mullapudi2016"));
    AutoschedulerParams params = {name, {{"parallelism", std::to_string(threads)}}};
    if (name == "Adams2019") params.extra["beam_size"] = "1";
    pipeline.apply_autoscheduler(target, params);
}

}  // namespace heed
