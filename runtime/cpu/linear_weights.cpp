// Packing of the weights of dense layers.
#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/backends.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/weight_element.h"

namespace heed {
namespace {

template <typename T>
void pack_panel(const WeightSource &source, const heed_linear_weights &w, int64_t panel, T *panels) {
    constexpr int64_t lanes = 16;  // whose offsets are computed once for all of k
    const int64_t first = panel * w.columns, end = std::min(first + w.columns, int64_t{w.dim_out});
    for (int64_t n = first; n < end; n += lanes) {
        const int64_t count = std::min(lanes, end - n);
        int64_t offsets[lanes];
        for (int64_t lane = 0; lane < count; lane++) offsets[lane] = source.row_offset(n + lane);
        T *const column = panels + (first * w.k_steps + n - first) * w.k_step;
        for (int64_t k = 0; k < w.dim_in; k++) {
            const T *const row = static_cast<const T *>(source.data) + source.column_offset(k);
            T *const to = column + k / w.k_step * w.columns * w.k_step + k % w.k_step;
            for (int64_t lane = 0; lane < count; lane++) to[lane * w.k_step] = row[offsets[lane]];
        }
    }
}

}  // namespace

heed_status pack_linear(const char *name, const LinearSource &source, heed_linear_weights *w,
                        const heed_execution *execution) {
    const heed_dtype dtype = source.dtype;
    const int32_t dim_in = source.dim_in, dim_out = source.dim_out;
    w->dtype = dtype;
    w->dim_in = dim_in;
    w->dim_out = dim_out;
    if (const heed_status status = find_linear_kernels(dtype, w)) return status;
    w->num_panels = narrow((int64_t{dim_out} + w->columns - 1) / w->columns);
    const int64_t panels = int64_t{w->num_panels} + 1, bytes = dtype_bytes(dtype);
    const int64_t unit = int64_t{linear_step_block} * w->k_step;
    const int64_t k_steps = (dim_in + unit - 1) / unit * linear_step_block;
    const int64_t panel_elements = k_steps * w->k_step * w->columns;
    if (panel_elements > std::numeric_limits<int32_t>::max()) {
        return fail(HEED_UNSUPPORTED, "%s: dim_in is %d; a panel of %d columns is beyond 2^31-1 elements", name, dim_in,
                    w->columns);
    }
    w->k_steps = narrow(k_steps);
    const int64_t elements = panel_elements * panels;
    heed_status status = w->panels.allocate(name, elements * bytes);
    if (!status) status = w->bias.allocate(name, panels * w->columns);
    if (status) return status;
    // Columns after dim_out, and elements after dim_in.
    const int64_t zeros = dim_in % unit == 0 ? 2 * panel_elements : elements;
    std::memset(w->panels.data() + (elements - zeros) * bytes, 0, static_cast<size_t>(zeros * bytes));
    const auto pack = [&](int64_t panel, int32_t, char(&)[512]) {
        void *const to = w->panels.data();
        if (dtype == HEED_F32) pack_panel(source.weight, *w, panel, static_cast<float *>(to));
        if (dtype != HEED_F32) pack_panel(source.weight, *w, panel, static_cast<uint16_t *>(to));
        return 0;
    };
    const int32_t threads =
        execution == nullptr ? 1 : op_threads(execution, 2.0 * static_cast<double>(elements * bytes));
    status = run_op(name, execution, threads, w->num_panels, pack);
    if (status) return status;
    for (int64_t n = 0; n < panels * w->columns; n++) {
        w->bias[n] = source.bias != nullptr && n < dim_out ? load_element(source.bias, n, dtype) : 0;
    }
    return HEED_OK;
}

heed_status CpuBackend::pack(const char *name, const LayerDevice &, const LinearSource &source,
                             heed_linear_weights *packed) const {
    return pack_linear(name, source, packed);
}

WeightSource CpuBackend::unpacked(const heed_linear_weights &w) const {
    const int64_t step = int64_t{w.columns} * w.k_step;
    return {w.panels.data(), w.columns, w.k_step, w.k_steps * step, w.k_step, step, 1};
}

}  // namespace heed
