// What the arrays of a case must be: type, shape, prefix sums. Each check throws InvalidInput that names the array.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "heed/heed.h"
#include "runtime/reference/tensor_file.h"

namespace heed_reference {

// Extents and strides in the documented order: b, s, h, d. Axes that the array lacks have extent 1 and stride 0.
struct Tensor {
    std::array<int64_t, 4> extent;
    heed_layout layout;
};

[[noreturn]] void refuse(const std::string &name, const std::string &what, const std::string &allowed);

// The type of elements of `dtype`.
ElementType element_type(heed_dtype dtype);

void require_type(const std::string &name, const Array &array, const std::vector<ElementType> &allowed);
void require_shape(const std::string &name, const Array &array, const std::vector<int64_t> &shape);
void require_extent(const std::string &name, char axis, int64_t extent, int64_t wanted, const std::string &source);

// int32 prefix sums from 0 to `total`, which is what `source` holds.
void require_prefix_sums(const std::string &name, const Array &sums, int64_t total, const std::string &source);

// A layout of the problem without the axes that the array has not.
std::string axes_without(std::string axes, const std::string &absent);

// The stride of the axis outside one of `extent`. Empty arrays may have shapes whose strides no integer holds.
int64_t next_stride(const std::string &name, const Array &array, int64_t stride, int64_t extent);

// The array whose axes are `axes`, some of b, s, h, d in the array's order.
Tensor tensor_of(const std::string &name, const Array &array, const std::string &axes);

}  // namespace heed_reference
