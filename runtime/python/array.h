// Arrays of any framework that speaks DLPack, and NumPy's, as Heed's tensors; nothing is copied.
#pragma once

#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "heed/heed.hpp"

namespace heed::python {

constexpr int32_t max_rank = 4;

enum class Access { read, write };

// Keeps its source alive. Strides are in elements.
struct Array {
    std::string name;
    heed_tensor tensor = {};  // size: from the first to the last element that the strides reach
    heed_device device = HEED_CPU;
    int32_t device_id = 0;
    int32_t rank = 0;
    int64_t shape[max_rank] = {}, stride[max_rank] = {};
    nanobind::ndarray<nanobind::ro> source;
    nanobind::ndarray<> target;  // of what is written
    nanobind::object torch;      // of PyTorch's tensors on the CPU, instead of both

    int32_t extent(int32_t axis) const { return static_cast<int32_t>(shape[axis]); }
    // For f32, f16 or bf16: only indices [first, first + count) of the axis, which has them.
    void keep(int32_t axis, int64_t first, int64_t count);
    std::vector<int64_t> shape_with_last(int64_t last) const;
    bool is_packed() const;
    // INVALID_ARGUMENT unless the shape is `expected`; `axes` names them: "[batch, q_len, num_heads, head_dim]".
    void check_shape(const std::vector<int64_t> &expected, const char *axes) const;
    // Unless it broadcasts to `full`: fewer axes, or extents of 1.
    void check_broadcast(const std::vector<int64_t> &full, const char *axes) const;
    void check_rank(int32_t expected, const char *axes) const;
    void check_packed() const;
    void check_packed(heed_dtype expected) const;  // of this type too
    void check_dtype(heed_dtype expected) const;
    // The shape, type, device and strides of `other`; strides of extents below 2 do not count.
    void check_like(const Array &other) const;
    void check_device(const Array &other) const;
    void check_on(heed_device expected) const;  // any of CUDA's
};

// INVALID_ARGUMENT for what is no array, has more than four dimensions or extents beyond 2^31-1, is on another
// device than a CPU or CUDA, cannot be written though it must be, or has elements that Heed has no type for. NumPy
// arrays of ml_dtypes' bfloat16 are taken too.
Array import_array(const std::string &name, nanobind::handle object, Access access);

// "[2, 3]".
std::string shape_text(const int64_t *extents, size_t rank);

// "float32" and so on, as NumPy and PyTorch call it.
const char *dtype_name(heed_dtype dtype);

// The layout of a tensor with four dimensions: of `array` after leading extents of 1, or before trailing ones.
// INVALID_ARGUMENT when all of a last axis is one element: strides of 0 throughout would mean a packed tensor.
heed_layout layout_of(const Array &array, int32_t trailing = 0);

// The shape and layout of a mask or bias in four dimensions: extents of 1 in front, and wherever elements repeat.
void broadcast_layout(const Array &array, int32_t shape[max_rank], heed_layout *layout);

// INVALID_ARGUMENT unless the array is int32 [batch], packed, on the CPU.
int32_t *lengths_of(const Array &array, int64_t batch);

}  // namespace heed::python
