// The workspace of a layer: what a call needs, and the most that any call may need.
#include <algorithm>

#include "runtime/layer/layer.h"
#include "runtime/layer/parts.h"
#include "runtime/status.h"
#include "runtime/workspace.h"

namespace heed {
namespace {

// What depends on the sequences alone comes first, so that it is at one place whatever the rest amounts to.
void lay_out_lists(const LayerSizes &sizes, Parts *parts, LayerMemory *m) {
    for (int32_t **part : {&m->past, &m->q_offsets, &m->kv_lens, &m->new_lens}) parts->take(sizes.batch, part);
    parts->take(int64_t{sizes.batch} + 1, &m->cu_seqlens);
    parts->take(int64_t{sizes.batch} * sizes.q_len, &m->positions);
}

}  // namespace

heed_status take_lists(const heed_layer &layer, const char *name, const LayerSizes &sizes, HeapArray<char> *lists,
                       LayerMemory *m) {
    Parts parts(nullptr);
    lay_out_lists(sizes, &parts, m);
    const heed_status status = layer.device.backend().take_lists(name, parts.total(), lists);
    m->lists = lists->data();
    return status;
}

int64_t lay_out_memory(const heed_layer &layer, const LayerSizes &sizes, void *workspace, size_t bytes,
                       LayerMemory *m) {
    const heed_layer_config &c = layer.config;
    const Backend &backend = layer.device.backend();
    const int64_t element = dtype_bytes(c.dtype), batch = sizes.batch;
    const int64_t rows = batch * sizes.q_len, new_rows = batch * sizes.new_tokens;
    Parts parts(workspace), lists(m->lists);
    lay_out_lists(sizes, &backend.list_parts(parts, lists), m);
    m->q = static_cast<char *>(parts.take(rows * c.num_heads, c.head_dim * element));
    m->k = static_cast<char *>(parts.take(new_rows * c.num_kv_heads, c.head_dim * element));
    m->v = static_cast<char *>(parts.take(new_rows * c.num_kv_heads, c.head_dim_v * element));
    m->attention = static_cast<char *>(parts.take(rows * c.num_heads, c.head_dim_v * element));
    parts.take(batch * sizes.kv_len, &m->padding);
    parts.take(sizes.combined, &m->combined);
    backend.take_scratch(layer, sizes, &parts, m);
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
