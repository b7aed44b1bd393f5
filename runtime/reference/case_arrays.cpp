#include "runtime/reference/case_arrays.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/reference/invalid_input.h"

namespace heed_reference {

void refuse(const std::string &name, const std::string &what, const std::string &allowed) {
    throw InvalidInput(name + " " + what + "; it must " + allowed);
}

ElementType element_type(heed_dtype dtype) {
    switch (dtype) {
    case HEED_F16:
        return ElementType::f16;
    case HEED_BF16:
        return ElementType::bf16;
    case HEED_I8:
        return ElementType::i8;
    case HEED_U8:
        return ElementType::u8;
    default:
        return ElementType::f32;
    }
}

void require_type(const std::string &name, const Array &array, const std::vector<ElementType> &allowed) {
    std::string words;
    for (const ElementType type : allowed) {
        if (array.type == type) return;
        words += (words.empty() ? "" : " or ") + std::string(element_name(type));
    }
    refuse(name, std::string("holds ") + element_name(array.type), "hold " + words);
}

void require_shape(const std::string &name, const Array &array, const std::vector<int64_t> &shape) {
    if (array.shape != shape) refuse(name, "has shape " + shape_text(array.shape), "have shape " + shape_text(shape));
}

void require_extent(const std::string &name, char axis, int64_t extent, int64_t wanted, const std::string &source) {
    if (extent == wanted) return;
    refuse(name, "has extent " + std::to_string(extent) + " on axis " + axis,
           "have " + std::to_string(wanted) + ", as " + source);
}

void require_prefix_sums(const std::string &name, const Array &sums, int64_t total, const std::string &source) {
    int32_t before = 0;
    for (int64_t i = 0; i < sums.size(); i++) {
        const int32_t sum = sums.as<int32_t>()[i];
        const std::string what = "has " + std::to_string(sum) + " at " + std::to_string(i);
        if (i == 0 && sum != 0) refuse(name, what, "start with 0");
        if (sum < before) refuse(name, what + " after " + std::to_string(before), "never fall");
        before = sum;
    }
    if (before == total) return;
    refuse(name, "ends with " + std::to_string(before),
           "end with " + std::to_string(total) + ", the tokens of " + source);
}

std::string axes_without(std::string axes, const std::string &absent) {
    const auto is_absent = [&](char axis) { return absent.find(axis) != std::string::npos; };
    axes.erase(std::remove_if(axes.begin(), axes.end(), is_absent), axes.end());
    return axes;
}

int64_t next_stride(const std::string &name, const Array &array, int64_t stride, int64_t extent) {
    int64_t next = 0;
    if (__builtin_mul_overflow(stride, std::max<int64_t>(extent, 1), &next)) {
        refuse(name, "has shape " + shape_text(array.shape), "have strides below 2^63");
    }
    return next;
}

Tensor tensor_of(const std::string &name, const Array &array, const std::string &axes) {
    if (array.shape.size() != axes.size()) {
        refuse(name, "has shape " + shape_text(array.shape), "have " + std::to_string(axes.size()) + " axes, " + axes);
    }
    Tensor tensor{{1, 1, 1, 1}, {}};
    int64_t stride = 1;
    for (size_t i = axes.size(); i-- > 0;) {
        if (array.shape[i] > std::numeric_limits<int32_t>::max()) {
            refuse(name, "has shape " + shape_text(array.shape), "have extents of 0..2^31-1");
        }
        const size_t axis = std::strchr("bshd", axes[i]) - "bshd";
        tensor.extent[axis] = array.shape[i];
        tensor.layout.stride[axis] = stride;
        stride = next_stride(name, array, stride, array.shape[i]);
    }
    return tensor;
}

}  // namespace heed_reference
