// Memory and steps of layers on CUDA.
#include "layer/layer.h"

#include "cuda/cuda_backend.h"
#include "cuda/gradient_launches.h"
#include "cuda/layer_launches.h"
#include "layer/parts.h"
#include "ops/op_rows.h"
#include "ops/steps.h"

namespace heed {

heed_status CudaBackend::open(heed_dtype dtype, cuda::ScopedContext *context, LayerDevice *device) const {
    if (const heed_status status = check_launches({Op::linear}, dtype)) return status;
    const char *reason = nullptr;
    device->driver = cuda::find_driver(&reason);
    if (device->driver == nullptr) return fail(HEED_NO_DEVICE, "device is HEED_CUDA; %s", reason);
    const heed_status status = context->enter(*device->driver, nullptr);
    device->context = context->handle();
    device->context_id = context->id();
    device->capability = context->capability();
    return status;
}

heed_status CudaBackend::enter(const LayerDevice &device, cuda::ScopedContext *context) const {
    return context->enter_context(*device.driver, device.context);
}

heed_status CudaBackend::enter_call(const LayerDevice &device, const heed_execution &execution,
                                    cuda::ScopedContext *context) const {
    const auto stream = static_cast<cuda::Stream>(execution.stream);
    if (const heed_status status = context->enter(*device.driver, stream)) return status;
    if (context->id() == device.context_id) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "execution.stream is of another CUDA context; it must be of the layer's");
}

heed_status CudaBackend::allocate(const char *, const LayerDevice &device, int64_t bytes, OwnedMemory *memory) const {
    return memory->device.allocate(*device.driver, static_cast<size_t>(bytes));
}

heed_status CudaBackend::fill(const void *from, int64_t bytes, OwnedMemory *memory) const {
    return memory->device.fill(from, static_cast<size_t>(bytes));
}

heed_status CudaBackend::clear(const heed_execution &execution, void *data, int64_t bytes) const {
    return cuda::launch_clear(execution, data, bytes);
}

int64_t CudaBackend::workspace_share(int64_t bytes) const { return bytes; }

heed_status CudaBackend::take_temporary(const Temporary &temporary, int64_t bytes, HeapArray<char> *,
                                        char **memory) const {
    if (bytes > temporary.room) {
        return fail(HEED_INTERNAL, "%s: the layer's workspace is too small for its own largest call", temporary.name);
    }
    *memory = static_cast<char *>(temporary.execution.workspace) + temporary.first;
    return HEED_OK;
}

heed_status CudaBackend::take_lists(const char *name, int64_t bytes, HeapArray<char> *lists) const {
    return lists->allocate(name, bytes);
}

Parts &CudaBackend::list_parts(Parts &, Parts &lists) const { return lists; }

void CudaBackend::take_scratch(const heed_layer &, const LayerSizes &, Parts *, LayerMemory *) const {}

heed_status CudaBackend::norm(const StepRun &run, const NormRows &norm) const {
    return cuda::launch_norm(run.execution, run.dtype, norm);
}

int64_t CudaBackend::norm_gradient_scratch(int64_t elements) const { return elements; }

heed_status CudaBackend::norm_gradients(const StepRun &run, const NormGradient &n) const {
    auto *const scratch = static_cast<float *>(run.scratch);
    const auto sum = [&](const void *from, heed_dtype dtype, float *to) {
        return cuda::launch_column_sums(run.execution,
                                        {from, dtype, n.length, n.rows, n.length, to, HEED_F32, false, scratch});
    };
    heed_status status = sum(n.dy, run.dtype, n.sums.dbias);  // before dy is dx
    if (!status) status = cuda::launch_norm_gradient(run.execution, run.dtype, n);
    return status ? status : sum(n.products, HEED_F32, n.sums.dweight);
}

heed_status CudaBackend::clip_gradient(const StepRun &run, const void *x, int64_t count, float limit,
                                       void *gradient) const {
    return cuda::launch_clip_gradient(run.execution, run.dtype, x, gradient, count, limit);
}

heed_status CudaBackend::key_padding(const heed_execution &execution, const KeyPadding &padding) const {
    return cuda::launch_key_padding(execution, padding);
}

heed_status CudaBackend::copy_rows(const StepRun &run, const MatrixMove &move) const {
    return move.rows == 0 ? HEED_OK : cuda::launch_copy_rows(run.execution, run.dtype, move);
}

heed_status CudaBackend::copy_visible(const StepRun &run, const HiddenRows &s, char *to) const {
    const int64_t bytes = s.columns * dtype_bytes(run.dtype);
    heed_status status = cuda::launch_copy_rows(run.execution, run.dtype,
                                                {s.data, s.columns, to, s.columns, int64_t{s.batch} * s.len, s.columns},
                                                {s.padding, s.true_hides});
    for (int64_t n = 0; n < s.batch && !status; n++) {
        const int64_t hidden = s.len - s.lens[n];
        if (hidden > 0) status = clear(run.execution, to + (n * s.len + s.lens[n]) * bytes, hidden * bytes);
    }
    return status;
}

heed_status CudaBackend::copy_weight(const StepRun &run, const heed_linear_weights &w, char *to) const {
    return copy_rows(run, {w.device_weight, w.row_stride, to, w.dim_in, w.dim_out, w.dim_in});
}

heed_status CudaBackend::add_view(const StepRun &run, const void *from, const View &view, void *to) const {
    const int64_t *const extent = view.extent, *const stride = view.stride;
    const WeightSource place = {
        to,       static_cast<int32_t>(extent[1]), static_cast<int32_t>(extent[3]), stride[0], stride[1], stride[2],
        stride[3]};
    return cuda::launch_add(run.execution,
                            {from, run.dtype, place, run.dtype, extent[0] * extent[1], extent[2] * extent[3], true});
}

}  // namespace heed
