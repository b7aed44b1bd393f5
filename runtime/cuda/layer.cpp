// Memory and steps of layers on CUDA.
#include "runtime/layer/layer.h"

#include "runtime/backends.h"
#include "runtime/cuda/op_session.h"
#include "runtime/layer/parts.h"
#include "runtime/ops/steps.h"

namespace heed {

heed_status CudaBackend::open(heed_dtype dtype, DeviceScope *scope, LayerDevice *device) const {
    if (const heed_status status = check_launches({Op::linear}, dtype)) return status;
    if (const heed_status status = cuda::open_driver("device", &device->driver)) return status;
    const auto context = std::make_shared<cuda::ScopedContext>();
    *scope = context;
    const heed_status status = context->enter(*device->driver, nullptr);
    device->context = context->handle();
    device->context_id = context->id();
    device->capability = context->capability();
    return status;
}

heed_status CudaBackend::enter(const LayerDevice &device, DeviceScope *scope) const {
    const auto context = std::make_shared<cuda::ScopedContext>();
    *scope = context;
    return context->enter_context(*device.driver, device.context);
}

heed_status CudaBackend::enter_call(const LayerDevice &device, const heed_execution &execution,
                                    DeviceScope *scope) const {
    const auto context = std::make_shared<cuda::ScopedContext>();
    *scope = context;
    const auto stream = static_cast<cuda::Stream>(execution.stream);
    if (const heed_status status = context->enter(*device.driver, stream)) return status;
    if (context->id() == device.context_id) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "execution.stream is of another CUDA context; it must be of the layer's");
}

heed_status CudaBackend::allocate(const char *, const LayerDevice &device, int64_t bytes, OwnedMemory *memory) const {
    cuda::DeviceAddress address = 0;
    const int code = device.driver->mem_alloc(&address, static_cast<size_t>(bytes));
    if (const heed_status status = cuda::check(*device.driver, code, "cuMemAlloc")) return status;
    memory->reset(cuda::pointer_of(address), [device](void *data) {
        cuda::ScopedContext context;
        if (context.enter_context(*device.driver, device.context)) return;
        device.driver->mem_free(cuda::address_of(data));
    });
    return HEED_OK;
}

// A copy from pageable memory returns before it has arrived; it is on the default stream.
heed_status CudaBackend::fill(const LayerDevice &device, const void *from, int64_t bytes, void *to) const {
    const cuda::Driver &driver = *device.driver;
    const int code = driver.memcpy_to_device(cuda::address_of(to), from, static_cast<size_t>(bytes));
    if (const heed_status status = cuda::check(driver, code, "cuMemcpyHtoD")) return status;
    return cuda::check(driver, driver.stream_synchronize(nullptr), "cuStreamSynchronize");
}

heed_status CudaBackend::clear(const heed_execution &execution, void *data, int64_t bytes) const {
    const cuda::Driver *driver = nullptr;
    if (const heed_status status = cuda::open_driver("execution.device", &driver)) return status;
    const auto stream = static_cast<cuda::Stream>(execution.stream);
    return cuda::check(*driver, driver->memset_async(cuda::address_of(data), 0, static_cast<size_t>(bytes), stream),
                       "cuMemsetD8Async");
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
    if (norm.rows > cuda::max_count) {
        return fail(HEED_UNSUPPORTED, "%lld rows of q or k are to be normalised; CUDA serves 2^30",
                    static_cast<long long>(norm.rows));
    }
    const auto row_bytes = static_cast<uint64_t>(norm.length * int64_t{dtype_bytes(run.dtype)});
    cuda::LayerNormArguments arguments;
    arguments.rows = static_cast<int32_t>(norm.rows);
    arguments.length = norm.length;
    arguments.wide = (cuda::address_of(norm.data) | row_bytes) % 16 == 0;
    arguments.epsilon = norm.epsilon;
    arguments.x_first = cuda::address_of(norm.data);
    arguments.weight_first = cuda::address_of(norm.weight);
    arguments.bias_first = cuda::address_of(norm.bias);
    arguments.named = cuda::named(norm.data);
    return cuda::launch(run.execution, Op::layer_norm, run.dtype, arguments);
}

heed_status CudaBackend::key_padding(const heed_execution &execution, const KeyPadding &p) const {
    int64_t elements = 0;
    // Blocks of a launch; a block has 256 keys of a line or fewer.
    if (!checked_mul(p.lines, p.keys / 256 + 1, &elements) || elements > INT32_MAX) {
        return fail(HEED_UNSUPPORTED, "key_padding joins %lld lines of %d keys; CUDA serves 2^31 blocks of 256 keys",
                    static_cast<long long>(p.lines), p.keys);
    }
    const auto stride = [&](int axis) { return static_cast<uint64_t>(p.mask == nullptr ? 0 : p.view.stride[axis]); };
    cuda::KeyPaddingArguments arguments;
    arguments.lines = static_cast<int32_t>(p.lines);
    arguments.heads = p.heads;
    arguments.rows = p.rows;
    arguments.keys = p.keys;
    arguments.true_hides = p.true_hides;
    arguments.as_bias = p.as_bias;
    arguments.padding_first = cuda::address_of(p.padding);
    arguments.mask_first = cuda::address_of(p.mask);
    arguments.mask_batch = stride(0);
    arguments.mask_head = stride(1);
    arguments.mask_row = stride(2);
    arguments.mask_key = stride(3);
    arguments.out_first = cuda::address_of(p.out);
    arguments.named = cuda::named(p.out);
    return cuda::launch(execution, Op::key_padding, HEED_U8, arguments);
}

}  // namespace heed
