// Dense layers on CUDA.
#include <algorithm>
#include <cstring>

#include "runtime/backends.h"
#include "runtime/cuda/op_kernels.h"
#include "runtime/cuda/op_session.h"
#include "runtime/ops/linear.h"
#include "runtime/status.h"

namespace heed {
namespace cuda {
namespace {

// A launch numbers its rows, and its blocks of 64 x 64 results, with 32 bits.
heed_status check_size(int64_t num_rows, int64_t columns) {
    if (num_rows <= INT32_MAX - 64 && (num_rows + 63) / 64 * ((columns + 63) / 64) <= INT32_MAX) return HEED_OK;
    return fail(HEED_UNSUPPORTED, "heed_linear: %lld rows of %lld columns are too many for a launch",
                static_cast<long long>(num_rows), static_cast<long long>(columns));
}

heed_status launch_piece(const LinearCall &call, const LinearPiece &piece, OpSession *session) {
    const heed_linear_weights &w = *piece.weights;
    const auto bytes = [&](int64_t elements) { return static_cast<uint64_t>(elements * dtype_bytes(w.dtype)); };
    const auto out_bytes = [&](int64_t elements) {
        return static_cast<uint64_t>(elements * dtype_bytes(call.out_is_f32 ? HEED_F32 : w.dtype));
    };
    const int64_t rows = call.view.extent[0] * call.view.extent[1],
                  columns = piece.view.extent[2] * piece.view.extent[3];
    if (const heed_status status = check_size(rows, columns)) return status;
    LinearArguments arguments;
    arguments.num_rows = narrow(rows);
    arguments.len = narrow(call.view.extent[1]);
    arguments.dim_in = w.dim_in;
    arguments.first_column = piece.first_column;
    arguments.columns = narrow(columns);
    arguments.head_dim = narrow(piece.view.extent[3]);
    arguments.out_is_f32 = call.out_is_f32;
    arguments.x_first = address_of(call.x);
    arguments.x_batch = bytes(call.view.stride[0]);
    arguments.x_token = bytes(call.view.stride[1]);
    arguments.weight_first = address_of(w.device_weight);
    arguments.weight_row = bytes(w.row_stride);
    arguments.bias_first = address_of(w.device_bias);
    arguments.out_first = address_of(piece.out);
    arguments.out_batch = out_bytes(piece.view.stride[0]);
    arguments.out_token = out_bytes(piece.view.stride[1]);
    arguments.out_head = out_bytes(piece.view.stride[2]);
    arguments.named = named(piece.out);
    return session->launch(arguments);
}

// Clamps elements to [-limit, limit]; NaN stays.
heed_status launch_clip(const heed_execution &execution, heed_dtype dtype, void *data, int64_t elements, float limit) {
    OpSession session;
    if (const heed_status status = session.open(execution, Op::clip, dtype, dtype)) return status;
    const int64_t bytes = dtype_bytes(dtype);
    return launch_pieces(elements, [&](int64_t first, int32_t count) {
        char *const at = static_cast<char *>(data) + first * bytes;
        ClipArguments arguments;
        arguments.count = count;
        arguments.wide = (address_of(at) | static_cast<uint64_t>(count * bytes)) % 16 == 0;
        arguments.limit = limit;
        arguments.x_first = address_of(at);
        arguments.named = named(at);
        return session.launch(arguments);
    });
}

// Whether rows of x and of the weights are whole chunks of 16 bytes, which kernels for tensor cores need.
bool is_wide(const LinearCall &call) {
    const heed_linear_weights &w = *call.pieces[0].weights;
    const int64_t elements = call.view.stride[0] | call.view.stride[1] | w.row_stride | w.dim_in;
    return (elements * dtype_bytes(w.dtype)) % 16 == 0 && (address_of(call.x) | address_of(w.device_weight)) % 16 == 0;
}

}  // namespace
}  // namespace cuda

// Copied to memory of the current context that the weights own.
heed_status CudaBackend::pack(const char *name, const LayerDevice &device, const LinearSource &source,
                              heed_linear_weights *w) const {
    const heed_dtype dtype = source.dtype;
    const int32_t dim_in = source.dim_in, dim_out = source.dim_out;
    const WeightSource &weight = source.weight;
    const int64_t bytes = dtype_bytes(dtype), elements = int64_t{dim_in} * dim_out;
    HeapArray<char> rows;
    heed_status status = rows.allocate(name, elements * bytes);
    if (status) return status;
    for (int64_t n = 0; n < dim_out; n++) {
        const char *const from = static_cast<const char *>(weight.data) + weight.row_offset(n) * bytes;
        char *const to = rows.data() + n * dim_in * bytes;
        if (weight.k_inner == 1 && weight.k_block >= dim_in) {
            std::memcpy(to, from, static_cast<size_t>(dim_in * bytes));
            continue;
        }
        for (int64_t k = 0; k < dim_in; k++) {
            std::memcpy(to + k * bytes, from + weight.column_offset(k) * bytes, static_cast<size_t>(bytes));
        }
    }
    const auto keep = [&](const void *from, int64_t size, OwnedMemory *memory) {
        if (!status) status = allocate(name, device, size, memory);
        if (!status) status = fill(device, from, size, memory->get());
    };
    keep(rows.data(), elements * bytes, &w->owned_weight);
    if (source.bias != nullptr) keep(source.bias, dim_out * bytes, &w->owned_bias);
    const auto packed = WeightSource::row_major(w->owned_weight.get(), dim_in, dim_out, dim_in);
    refer_to({dtype, dim_in, dim_out, packed, w->owned_bias.get()}, w);
    return status;
}

WeightSource CudaBackend::unpacked(const heed_linear_weights &w) const {
    return WeightSource::row_major(w.device_weight, w.dim_in, w.dim_out, w.row_stride);
}

int64_t CudaBackend::linear_scratch(const heed_linear_weights &, int64_t, int32_t) const { return 0; }

// A launch per piece, and one more per piece that clips.
heed_status CudaBackend::linear(const LinearCall &call, float *) const {
    const heed_dtype dtype = call.pieces[0].weights->dtype;
    const int limit = cuda::is_wide(call) ? INT_MAX : required_capability(Capability::sm75);
    cuda::OpSession session;
    heed_status status = session.open(*call.execution, Op::linear, dtype, dtype, limit);
    for (int32_t i = 0; i < call.num_pieces && !status; i++)
        status = cuda::launch_piece(call, call.pieces[i], &session);
    for (int32_t i = 0; i < call.num_pieces && !status; i++) {
        const LinearPiece &piece = call.pieces[i];
        if (piece.clip == no_clip) continue;
        status = cuda::launch_clip(*call.execution, dtype, piece.out, piece.view.span, piece.clip);
    }
    return status;
}

}  // namespace heed
