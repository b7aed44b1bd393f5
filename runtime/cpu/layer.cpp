// Memory and steps of layers on the CPU.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "runtime/backends.h"
#include "runtime/layer/layer.h"
#include "runtime/layer/parts.h"
#include "runtime/ops/steps.h"
#include "runtime/weight_element.h"

namespace heed {
namespace {

// Arrays of heed_kv_append: lengths of each sequence, and segments of at least a token.
constexpr int64_t append_entry_bytes = 48, append_slack = 256;
constexpr size_t huge_page = 2 << 20;

}  // namespace

heed_status CpuBackend::open(heed_dtype, DeviceScope *, LayerDevice *) const { return HEED_OK; }

heed_status CpuBackend::enter(const LayerDevice &, DeviceScope *) const { return HEED_OK; }

heed_status CpuBackend::enter_call(const LayerDevice &, const heed_execution &, DeviceScope *) const { return HEED_OK; }

// In huge pages where the system has them.
heed_status CpuBackend::allocate(const char *name, const LayerDevice &, int64_t bytes, OwnedMemory *memory) const {
    const auto size = static_cast<size_t>(bytes), alignment = size < huge_page ? 64 : huge_page;
    const size_t whole = (size / alignment + 1) * alignment;
    memory->reset(std::aligned_alloc(alignment, whole), &std::free);
    if (*memory == nullptr) return fail(HEED_OUT_OF_MEMORY, "%s: no memory for %" PRId64 " bytes", name, bytes);
#if defined(__linux__)
    if (alignment == huge_page) madvise(memory->get(), whole, MADV_HUGEPAGE);
#endif
    return HEED_OK;
}

heed_status CpuBackend::fill(const LayerDevice &, const void *from, int64_t bytes, void *to) const {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return HEED_OK;
}

heed_status CpuBackend::clear(const heed_execution &, void *data, int64_t bytes) const {
    std::memset(data, 0, static_cast<size_t>(bytes));
    return HEED_OK;
}

int64_t CpuBackend::workspace_share(int64_t) const { return 0; }

heed_status CpuBackend::take_temporary(const Temporary &temporary, int64_t bytes, HeapArray<char> *heap,
                                       char **memory) const {
    if (bytes == 0) return HEED_OK;
    const heed_status status = heap->allocate(temporary.name, bytes + scratch_alignment);
    if (status) return status;
    const auto rest = reinterpret_cast<uintptr_t>(heap->data()) % static_cast<uintptr_t>(scratch_alignment);
    *memory = heap->data() + scratch_alignment - rest;
    return HEED_OK;
}

heed_status CpuBackend::take_lists(const char *, int64_t, HeapArray<char> *) const { return HEED_OK; }

Parts &CpuBackend::list_parts(Parts &workspace, Parts &) const { return workspace; }

void CpuBackend::take_scratch(const heed_layer &layer, const LayerSizes &sizes, Parts *parts, LayerMemory *m) const {
    const heed_layer_config &c = layer.config;
    const int64_t batch = sizes.batch, rows = batch * sizes.q_len, new_rows = batch * sizes.new_tokens;
    parts->take(std::max({linear_scratch(layer.q, std::max<int64_t>(rows, 1), c.max_threads),
                          linear_scratch(layer.k, std::max<int64_t>(new_rows, 1), c.max_threads),
                          linear_scratch(layer.out, std::max<int64_t>(rows, 1), c.max_threads)}),
                &m->linear);
    const int64_t norm_rows = c.qk_norm == HEED_QK_NORM_NONE ? 0 : std::max(rows, new_rows);
    m->norm = static_cast<float *>(parts->take(norm_rows, c.num_heads * int64_t{2 * sizeof(float)}));
    const int64_t before_append = parts->total();
    m->append = parts->take(batch * (int64_t{sizes.new_tokens} + 1) + append_slack, append_entry_bytes);
    m->append_bytes = static_cast<size_t>(parts->total() - before_append);
}

heed_status CpuBackend::norm(const StepRun &run, const NormRows &n) const {
    const int64_t bytes = n.length * int64_t{dtype_bytes(run.dtype)};
    const auto norm = [&](int64_t first, int32_t count, char(&message)[512]) {
        LayerNormArguments arguments;
        arguments.x = packed_buffer(static_cast<char *>(n.data) + first * bytes, run.dtype, {n.length, count});
        arguments.weight = packed_buffer(n.weight, HEED_F32, {n.length});
        arguments.bias = packed_buffer(n.bias, HEED_F32, {n.length});
        arguments.epsilon = n.epsilon;
        arguments.mean = packed_buffer(n.scratch + 2 * first, HEED_F32, {count});
        arguments.factor = packed_buffer(n.scratch + 2 * first + count, HEED_F32, {count});
        arguments.out = arguments.x;
        return call_op_kernel(*n.kernel, arguments, message);
    };
    const double moved = 2.0 * static_cast<double>(n.rows * bytes);
    return run_shares(run.name, &run.execution, moved, n.rows, tokens_per_block(bytes), norm);
}

heed_status CpuBackend::clip_gradient(const StepRun &run, const void *x, int64_t count, float limit,
                                      void *gradient) const {
    const auto clip = [&](int64_t first, int32_t elements, char(&)[512]) {
        for (int64_t i = first; i < first + elements; i++) {
            if (std::fabs(load_element(x, i, run.dtype)) >= limit) store_element(gradient, i, run.dtype, 0);
        }
        return 0;
    };
    const double moved = 2.0 * static_cast<double>(count * dtype_bytes(run.dtype));
    return run_shares(run.name, &run.execution, moved, count, element_share, clip);
}

heed_status CpuBackend::key_padding(const heed_execution &, const KeyPadding &p) const {
    const auto *const padding = static_cast<const uint8_t *>(p.padding), *const mask =
                                                                             static_cast<const uint8_t *>(p.mask);
    const auto hides = [&](uint8_t byte) { return (byte != 0) == p.true_hides; };
    for (int64_t line = 0; line < p.lines; line++) {
        const int64_t i = line % p.rows, h = line / p.rows % p.heads, b = line / p.rows / p.heads;
        for (int64_t j = 0; j < p.keys; j++) {
            bool hidden = hides(padding[b * p.keys + j]);
            if (mask != nullptr) {
                const int64_t *const stride = p.view.stride;
                hidden |= hides(mask[b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3]]);
            }
            const int64_t at = line * p.keys + j;
            if (p.as_bias) {
                static_cast<float *>(p.out)[at] = hidden ? -std::numeric_limits<float>::infinity() : 0;
            } else {
                static_cast<uint8_t *>(p.out)[at] = hidden == p.true_hides;
            }
        }
    }
    return HEED_OK;
}

heed_status CpuBackend::copy_rows(const StepRun &run, const MatrixMove &m) const {
    const int64_t bytes = dtype_bytes(run.dtype);
    for (int64_t row = 0; row < m.rows; row++) {
        std::memcpy(static_cast<char *>(m.to) + row * m.to_stride * bytes,
                    static_cast<const char *>(m.from) + row * m.from_stride * bytes,
                    static_cast<size_t>(m.columns * bytes));
    }
    return HEED_OK;
}

heed_status CpuBackend::copy_visible(const StepRun &run, const HiddenRows &s, char *to) const {
    const int64_t bytes = s.columns * dtype_bytes(run.dtype);
    const auto *const padding = static_cast<const uint8_t *>(s.padding);
    for (int64_t n = 0; n < s.batch; n++) {
        for (int32_t t = 0; t < s.len; t++) {
            const int64_t row = n * s.len + t;
            const bool padded = padding != nullptr && (padding[row] != 0) == s.true_hides;
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

heed_status CpuBackend::copy_weight(const StepRun &, const heed_linear_weights &w, char *to) const {
    const WeightSource from = unpacked(w);
    const int64_t bytes = dtype_bytes(w.dtype);
    for (int64_t n = 0; n < w.dim_out; n++) {
        const char *const row = static_cast<const char *>(from.data) + from.row_offset(n) * bytes;
        for (int64_t k = 0; k < w.dim_in; k++, to += bytes) {
            std::memcpy(to, row + from.column_offset(k) * bytes, static_cast<size_t>(bytes));
        }
    }
    return HEED_OK;
}

heed_status CpuBackend::add_view(const StepRun &run, const void *from, const View &view, void *to) const {
    const int64_t *const extent = view.extent, *const stride = view.stride;
    for (int64_t line = 0; line < extent[0] * extent[1] * extent[2]; line++) {
        const int64_t i = line % extent[2], h = line / extent[2] % extent[1], n = line / extent[2] / extent[1];
        for (int64_t j = 0; j < extent[3]; j++) {
            const int64_t at = n * stride[0] + h * stride[1] + i * stride[2] + j * stride[3];
            store_element(to, at, run.dtype, load_element(to, at, run.dtype) + load_element(from, at, run.dtype));
        }
    }
    return HEED_OK;
}

}  // namespace heed
