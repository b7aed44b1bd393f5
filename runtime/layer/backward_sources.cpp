// The rows that a backward call may read.
#include "runtime/layer/backward.h"

namespace heed {
heed_status take_sources(Backward *b) {
    const heed_layer_config &c = b->config();
    const heed_layer_args &a = b->f.a;
    const LayerMemory &m = b->run.memory;
    const Backend &backend = b->f.backend();
    const int32_t q_columns = c.num_heads * c.head_dim, kv_columns = c.num_kv_heads * (c.head_dim + c.head_dim_v);
    b->x = {{b->rows(), c.dim_in, q_columns + (c.cross ? 0 : kv_columns)}, a.x.data, b->m.x};
    b->dy = b->g.dy.data;
    if (a.q_lens != nullptr) {
        const HiddenRows x = {a.x.data, a.batch, a.q_len, c.dim_in, m.new_lens, nullptr, false};
        const HiddenRows dy = {b->dy, a.batch, a.q_len, c.dim_out, m.new_lens, nullptr, false};
        heed_status status = backend.copy_visible(b->step_run(), x, b->m.x.copy);
        if (!status) status = backend.copy_visible(b->step_run(), dy, b->m.dy);
        if (status) return status;
        b->x.data = b->m.x.copy;
        b->dy = b->m.dy;
    }
    if (!c.cross) return HEED_OK;
    b->context = {{b->key_rows(), c.dim_context, kv_columns}, a.context.data, b->m.context};
    const void *const padding = a.key_padding.data;
    if (b->key_rows() == 0 || (a.kv_lens == nullptr && padding == nullptr)) return HEED_OK;
    b->context.data = b->m.context.copy;
    const HiddenRows rows = {a.context.data, a.batch, a.context_len,    c.dim_context,
                             m.kv_lens,      padding, c.mask_true_hides};
    return backend.copy_visible(b->step_run(), rows, b->m.context.copy);
}

}  // namespace heed
