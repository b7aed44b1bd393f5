#include "halide_arguments.h"

#include <HalideRuntimeCuda.h>

namespace heed {
namespace {

halide_type_t halide_type(heed_dtype dtype) {
    switch (dtype) {
    case HEED_F32:
        return {halide_type_float, 32};
    case HEED_I32:
        return {halide_type_int, 32};
    case HEED_I8:
        return {halide_type_int, 8};
    case HEED_U8:
        return {halide_type_uint, 8};
    case HEED_F16:
    case HEED_BF16:
        return {halide_type_uint, 16};
    }
    return {};
}

}  // namespace

void HalideBuffer::set(const KernelBuffer &buffer, heed_device device) {
    for (int32_t i = 0; i < buffer.num_dims; i++) {
        dimensions[i] = halide_dimension_t(0, buffer.extent[i], buffer.stride[i]);
    }
    if (device == HEED_CUDA) {
        raw.device = reinterpret_cast<uintptr_t>(buffer.data);
        raw.device_interface = halide_cuda_device_interface();
    } else {
        raw.host = static_cast<uint8_t *>(buffer.data);
    }
    raw.type = halide_type(buffer.dtype);
    raw.dimensions = buffer.num_dims;
    raw.dim = dimensions;
}

HalideArguments::HalideArguments(const ArgumentList &list, void **user_context, heed_device device) {
    argv_[0] = user_context;
    int num_buffers = 0;
    for (int i = 0; i < list.count(); i++) {
        if (list[i].buffer == nullptr) {
            argv_[1 + i] = const_cast<void *>(list[i].scalar);
            continue;
        }
        HalideBuffer &buffer = buffers_[num_buffers++];
        buffer.set(*list[i].buffer, device);
        argv_[1 + i] = &buffer.raw;
    }
}

}  // namespace heed
