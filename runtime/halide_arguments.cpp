#include "runtime/halide_arguments.h"

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

void HalideBuffer::set(const KernelBuffer &buffer) {
    for (int32_t i = 0; i < buffer.num_dims; i++) {
        dimensions[i] = halide_dimension_t(0, buffer.extent[i], buffer.stride[i]);
    }
    raw.host = static_cast<uint8_t *>(buffer.data);
    raw.type = halide_type(buffer.dtype);
    raw.dimensions = buffer.num_dims;
    raw.dim = dimensions;
}

HalideArguments::HalideArguments(const ArgumentList &list, void **user_context) {
    argv_[0] = user_context;
    for (int i = 0; i < list.count(); i++) {
        if (list[i].buffer == nullptr) {
            argv_[1 + i] = const_cast<void *>(list[i].scalar);
            continue;
        }
        HalideBuffer &buffer = buffers_[num_buffers_++];
        buffer.set(*list[i].buffer);
        argv_[1 + i] = &buffer.raw;
    }
}

void HalideArguments::move_to(const halide_device_interface_t *device) {
    for (int i = 0; i < num_buffers_; i++) {
        halide_buffer_t &raw = buffers_[i].raw;
        raw.device = reinterpret_cast<uintptr_t>(raw.host);
        raw.host = nullptr;
        raw.device_interface = device;
    }
}

}  // namespace heed
