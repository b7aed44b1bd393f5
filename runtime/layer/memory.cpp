// The workspace of a layer: what a call needs, and the most that any call may need.
#include <algorithm>

#include "layer/layer.h"
#include "layer/parts.h"
#include "status.h"
#include "workspace.h"

namespace heed {
namespace {

// Arrays of heed_kv_append: lengths of each sequence, and segments of at least a token.
constexpr int64_t append_entry_bytes = 48, append_slack = 256;

// What the steps on the CPU need beside their tensors.
void take_scratch(const heed_layer &layer, const LayerSizes &sizes, Parts *parts, LayerMemory *m) {
    const heed_layer_config &c = layer.config;
    const int64_t batch = sizes.batch, rows = batch * sizes.q_len, new_rows = batch * sizes.new_tokens;
    parts->take(std::max({linear_scratch(layer.q, std::max<int64_t>(rows, 1)),
                          linear_scratch(layer.k, std::max<int64_t>(new_rows, 1)),
                          linear_scratch(layer.out, std::max<int64_t>(rows, 1))}),
                &m->linear);
    const int64_t norm_rows = c.qk_norm == HEED_QK_NORM_NONE ? 0 : std::max(rows, new_rows);
    m->norm = static_cast<float *>(parts->take(norm_rows, c.num_heads * int64_t{2 * sizeof(float)}));
    const int64_t before_append = parts->total();
    m->append = parts->take(batch * (int64_t{sizes.new_tokens} + 1) + append_slack, append_entry_bytes);
    m->append_bytes = static_cast<size_t>(parts->total() - before_append);
}

// Of the sequences alone in front, so that they lie at one place whatever the rest amounts to.
void lay_out_lists(const LayerSizes &sizes, Parts *parts, LayerMemory *m) {
    for (int32_t **part : {&m->past, &m->q_offsets, &m->kv_lens, &m->new_lens}) parts->take(sizes.batch, part);
    parts->take(int64_t{sizes.batch} * sizes.q_len, &m->positions);
}

}  // namespace

heed_status take_lists(const heed_layer &layer, const char *name, const LayerSizes &sizes, HeapArray<char> *lists,
                       LayerMemory *m) {
    if (layer.config.device == HEED_CPU) return HEED_OK;
    Parts parts(nullptr);
    lay_out_lists(sizes, &parts, m);
    const heed_status status = lists->allocate(name, parts.total());
    m->lists = lists->data();
    return status;
}

int64_t lay_out_memory(const heed_layer &layer, const LayerSizes &sizes, void *workspace, size_t bytes,
                       LayerMemory *m) {
    const heed_layer_config &c = layer.config;
    const bool on_cuda = c.device == HEED_CUDA;
    const int64_t element = dtype_bytes(c.dtype), batch = sizes.batch;
    const int64_t rows = batch * sizes.q_len, new_rows = batch * sizes.new_tokens;
    Parts parts(workspace), lists(m->lists);
    lay_out_lists(sizes, on_cuda ? &lists : &parts, m);
    m->q = static_cast<char *>(parts.take(rows * c.num_heads, c.head_dim * element));
    m->k = static_cast<char *>(parts.take(new_rows * c.num_kv_heads, c.head_dim * element));
    m->v = static_cast<char *>(parts.take(new_rows * c.num_kv_heads, c.head_dim_v * element));
    m->attention = static_cast<char *>(parts.take(rows * c.num_heads, c.head_dim_v * element));
    parts.take(batch * sizes.kv_len, &m->padding);
    if (on_cuda) {
        parts.take(sizes.combined, &m->combined);
    } else {
        take_scratch(layer, sizes, &parts, m);
    }
    m->plan = parts.take(0, 1);
    m->plan_bytes = bytes > static_cast<size_t>(parts.total()) ? bytes - static_cast<size_t>(parts.total()) : 0;
    return parts.total();
}

heed_status largest_workspace(const heed_layer &layer, size_t *bytes) {
    const heed_layer_config &c = layer.config;
    const LayerSizes sizes = {c.max_batch, c.max_q_len, c.max_kv_len, c.cross ? c.max_kv_len : c.max_q_len};
    LayerMemory memory = {};
    int64_t total = lay_out_memory(layer, sizes, nullptr, 0, &memory), plan = 0;
    for (const heed_dtype kv_dtype : {c.dtype, HEED_I8}) {
        heed_problem largest;
        init_problem(c, &largest);
        largest.kv_dtype = kv_dtype;
        plan = std::max(plan, most_workspace_bytes(largest));
    }
    if (plan < 0 || !checked_add(total, plan, &total) || total >= Parts::largest) {
        return fail(
            HEED_UNSUPPORTED,
            "max_batch is %d, max_q_len is %d, max_kv_len is %d: the workspace is beyond 2^62 bytes, or a table of "
            "blocks of query rows beyond 2^31-1 elements",
            c.max_batch, c.max_q_len, c.max_kv_len);
    }
    *bytes = static_cast<size_t>(round_up(total, scratch_alignment));
    return HEED_OK;
}

}  // namespace heed
