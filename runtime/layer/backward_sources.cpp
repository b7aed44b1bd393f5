// The rows that a backward call may read, and matrices that move as they are.
#include <cstring>

#include "cuda/gradient_launches.h"
#include "cuda/layer_launches.h"
#include "layer/backward.h"

namespace heed {
namespace {

// [batch, len, columns] of the caller's, of which a call hides rows.
struct SourceRows {
    const void *data;
    int32_t len;
    int64_t columns;
    const int32_t *lens;         // [batch], tokens behind which are hidden
    const heed_tensor *padding;  // uint8 [batch, len], or NULL
};

heed_status copy_on_cpu(const Backward &b, const SourceRows &s, char *to) {
    const int64_t bytes = s.columns * dtype_bytes(b.config().dtype);
    const auto *const padding = static_cast<const uint8_t *>(s.padding == nullptr ? nullptr : s.padding->data);
    for (int64_t n = 0; n < b.f.a.batch; n++) {
        for (int32_t t = 0; t < s.len; t++) {
            const int64_t row = n * s.len + t;
            const bool padded = padding != nullptr && (padding[row] != 0) == b.config().mask_true_hides;
            if (padded || t >= s.lens[n]) {
                std::memset(to + row * bytes, 0, static_cast<size_t>(bytes));
            } else {
                std::memcpy(to + row * bytes, static_cast<const char *>(s.data) + row * bytes,
                            static_cast<size_t>(bytes));
            }
        }
    }
    return HEED_OK;
}

heed_status copy_on_cuda(const Backward &b, const SourceRows &s, char *to) {
    const heed_layer_config &c = b.config();
    const heed_execution &execution = b.run.execution;
    const int64_t bytes = s.columns * dtype_bytes(c.dtype);
    const cuda::RowPadding padding = {s.padding == nullptr ? nullptr : s.padding->data, c.mask_true_hides};
    heed_status status = cuda::launch_copy_rows(
        execution, c.dtype, {s.data, s.columns, to, s.columns, int64_t{b.f.a.batch} * s.len, s.columns}, padding);
    for (int64_t n = 0; n < b.f.a.batch && !status; n++) {
        const int64_t hidden = s.len - s.lens[n];
        if (hidden == 0) continue;
        status = cuda::launch_clear(*b.f.layer.device.driver, static_cast<cuda::Stream>(execution.stream),
                                    to + (n * s.len + s.lens[n]) * bytes, hidden * bytes);
    }
    return status;
}

heed_status copy_visible(const Backward &b, const SourceRows &s, char *to) {
    return b.f.on_cuda() ? copy_on_cuda(b, s, to) : copy_on_cpu(b, s, to);
}

}  // namespace

heed_status take_sources(Backward *b) {
    const heed_layer_config &c = b->config();
    const heed_layer_args &a = b->f.a;
    const LayerMemory &m = b->run.memory;
    const int32_t q_columns = c.num_heads * c.head_dim, kv_columns = c.num_kv_heads * (c.head_dim + c.head_dim_v);
    b->x = {{b->rows(), c.dim_in, q_columns + (c.cross ? 0 : kv_columns)}, a.x.data, b->m.x};
    b->dy = b->g.dy.data;
    if (a.q_lens != nullptr) {
        heed_status status = copy_visible(*b, {a.x.data, a.q_len, c.dim_in, m.new_lens, nullptr}, b->m.x.copy);
        if (!status) status = copy_visible(*b, {b->dy, a.q_len, c.dim_out, m.new_lens, nullptr}, b->m.dy);
        if (status) return status;
        b->x.data = b->m.x.copy;
        b->dy = b->m.dy;
    }
    if (!c.cross) return HEED_OK;
    b->memory = {{b->key_rows(), c.dim_memory, kv_columns}, a.memory.data, b->m.memory};
    const heed_tensor *const padding = a.key_padding.data == nullptr ? nullptr : &a.key_padding;
    if (b->key_rows() == 0 || (a.kv_lens == nullptr && padding == nullptr)) return HEED_OK;
    b->memory.data = b->m.memory.copy;
    return copy_visible(*b, {a.memory.data, a.memory_len, c.dim_memory, m.kv_lens, padding}, b->m.memory.copy);
}

heed_status copy_matrix(const Backward &b, const void *from, int64_t rows, int64_t columns, void *to) {
    return copy_columns(b, from, rows, columns, static_cast<char *>(to), 0, columns);
}

heed_status copy_columns(const Backward &b, const void *from, int64_t rows, int64_t columns, char *to, int64_t at,
                         int64_t width) {
    const heed_dtype dtype = b.config().dtype;
    const int64_t bytes = dtype_bytes(dtype);
    if (rows == 0) return HEED_OK;
    if (b.f.on_cuda()) {
        return cuda::launch_copy_rows(b.run.execution, dtype, {from, columns, to + at * bytes, width, rows, columns});
    }
    for (int64_t row = 0; row < rows; row++) {
        std::memcpy(to + (row * width + at) * bytes, static_cast<const char *>(from) + row * columns * bytes,
                    static_cast<size_t>(columns * bytes));
    }
    return HEED_OK;
}

}  // namespace heed
