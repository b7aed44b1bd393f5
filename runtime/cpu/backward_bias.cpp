// dbias: of the tiles' gradients of logits, in the bias' own layout or, where several logits share an element, in a
// packed sum of floats first.
#include "runtime/cpu/backward_rows.h"
#include "runtime/halide_bridge.h"
#include "runtime/ops/gradient_checks.h"
#include "runtime/status.h"
#include "runtime/view.h"

namespace heed {
namespace {

// dbias as the packed sums have it.
View packed_view(View view) {
    int64_t stride = 1;
    for (int n = 3; n >= 0; n--) {
        view.stride[n] = view.extent[n] == 1 ? 0 : stride;
        stride *= view.extent[n];
    }
    return view;
}

int64_t element_of(const View &view, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t at[] = {b, h, i, j};
    int64_t index = 0;
    for (int n = 0; n < 4; n++) index += view.extent[n] == 1 ? 0 : at[n] * view.stride[n];
    return index;
}

char *bias_at(const BackwardCall &call, int64_t index) {
    return static_cast<char *>(call.gradients.dbias.data) + index * dtype_bytes(call.plan.problem.bias_dtype);
}

int32_t bias_row_stride(const View &view) { return view.extent[2] == 1 ? 0 : narrow(view.stride[2]); }

// Gradients (j, i) of any strides as rows of the caller's dbias from `index` on: copies of floats, else rounded.
int store_slice(const BackwardCall &call, const KernelBuffer &grads, int64_t index, const View &view,
                char (&message)[512]) {
    const heed_problem &p = call.plan.problem;
    const int32_t columns = grads.extent[0], rows = grads.extent[1];
    if (p.bias_dtype != HEED_F32) {
        constexpr int32_t chunk = backward_chunk;
        const KernelBuffer by_chunks = {grads.data,
                                        HEED_F32,
                                        3,
                                        {chunk, rows, narrow(round_up(columns, chunk)) / chunk},
                                        {grads.stride[0], grads.stride[1], chunk * grads.stride[0]}};
        const TensorRows to = {bias_at(call, index), bias_row_stride(view), columns, rows};
        return store_rows(*call.layout.store, by_chunks, 1, p.bias_dtype, to, message);
    }
    const auto *const from = static_cast<const float *>(grads.data);
    auto *const to = static_cast<float *>(call.gradients.dbias.data) + index;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            to[i * bias_row_stride(view) + j] = from[i * grads.stride[1] + j * grads.stride[0]];
        }
    }
    return 0;
}

// Calls run(b, h) -> int for each slice of dbias.
template <typename Run>
int for_each_slice(const View &view, const Run &run) {
    for (int64_t b = 0; b < view.extent[0]; b++) {
        for (int64_t h = 0; h < view.extent[1]; h++) {
            if (const int code = run(b, h)) return code;
        }
    }
    return 0;
}

}  // namespace

void clear_bias(const BackwardCall &call) {
    const View view = dbias_view(call.plan.problem, call.plan.views);
    if (call.layout.sums_bias) {
        float *const sums = call.at<float>(call.layout.dbias);
        std::fill(sums, sums + view.extent[0] * view.extent[1] * view.extent[2] * view.extent[3], 0.0f);
        return;
    }
    for_each_slice(view, [&](int64_t b, int64_t h) {
        for (int64_t i = 0; i < view.extent[2]; i++) {
            const int64_t first = element_of(view, b, h, i, 0);
            std::fill(bias_at(call, first), bias_at(call, first + view.extent[3]), char{0});
        }
        return 0;
    });
}

int add_bias_tile(const BackwardCall &call, const BiasTile &tile, char (&message)[512]) {
    const heed_problem &p = call.plan.problem;
    const View view = dbias_view(p, call.plan.views);
    if (!call.layout.sums_bias) {
        const int64_t index = element_of(view, tile.sequence, tile.head, tile.row, tile.key);
        return store_slice(call, tile.grads, index, view, message);
    }
    const View packed = packed_view(view);
    float *const sums =
        call.at<float>(call.layout.dbias) + element_of(packed, tile.sequence, tile.head, tile.row, tile.key);
    const int32_t columns = view.extent[3] == 1 ? 1 : tile.grads.extent[0],
                  rows = view.extent[2] == 1 ? 1 : tile.grads.extent[1];
    BackwardBiasArguments arguments;
    arguments.grads = tile.grads;
    arguments.before = arguments.dbias = {sums, HEED_F32, 2, {columns, rows}, {1, bias_row_stride(packed)}};
    return call_op_kernel(*call.layout.bias, arguments, message);
}

int store_bias(const BackwardCall &call, char (&message)[512]) {
    if (!call.layout.sums_bias) return 0;
    const heed_problem &p = call.plan.problem;
    const View view = dbias_view(p, call.plan.views), packed = packed_view(view);
    const auto columns = narrow(view.extent[3]), rows = narrow(view.extent[2]);
    return for_each_slice(view, [&](int64_t b, int64_t h) {
        float *const sums = call.at<float>(call.layout.dbias) + element_of(packed, b, h, 0, 0);
        const KernelBuffer grads = packed_buffer(sums, HEED_F32, {columns, rows});
        return store_slice(call, grads, element_of(view, b, h, 0, 0), view, message);
    });
}

}  // namespace heed
