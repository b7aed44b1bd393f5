#include "array.h"

#include <algorithm>

#include <nanobind/stl/string.h>

#include "errors.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

std::string class_name(nb::handle object) { return nb::cast<std::string>(nb::str(object.type().attr("__name__"))); }

// ml_dtypes' bfloat16, which neither DLPack nor the buffer protocol of NumPy names, has dtype.kind "V".
bool is_numpy_bfloat16(nb::handle object) {
    if (class_name(object) != "ndarray" || !nb::hasattr(object, "dtype")) return false;
    const nb::object dtype = object.attr("dtype");
    return nb::cast<std::string>(dtype.attr("kind")) == "V" &&
           nb::cast<std::string>(nb::str(dtype.attr("name"))) == "bfloat16";
}

heed_dtype dtype_of(const std::string &name, nb::dlpack::dtype type) {
    using Code = nb::dlpack::dtype_code;
    const auto code = static_cast<Code>(type.code);
    if (type.lanes == 1) {
        if (code == Code::Float && type.bits == 32) return HEED_F32;
        if (code == Code::Float && type.bits == 16) return HEED_F16;
        if (code == Code::Bfloat && type.bits == 16) return HEED_BF16;
        if (code == Code::Int && type.bits == 8) return HEED_I8;
        if ((code == Code::UInt || code == Code::Bool) && type.bits == 8) return HEED_U8;
        if (code == Code::Int && type.bits == 32) return HEED_I32;
    }
    const char *kind = code == Code::Float     ? "float"
                       : code == Code::Int     ? "int"
                       : code == Code::UInt    ? "uint"
                       : code == Code::Complex ? "complex"
                                               : "another type with bits: ";
    refuse("%s has elements of %s%d; they must be float32, float16, bfloat16, int8, uint8, bool or int32", name.c_str(),
           kind, type.bits);
}

heed_device device_of(const std::string &name, int32_t type) {
    if (type == nb::device::cpu::value || type == nb::device::cuda_host::value) return HEED_CPU;
    if (type == nb::device::cuda::value) return HEED_CUDA;
    refuse("%s is on a device of DLPack's type %d; it must be on a CPU (1, 3) or CUDA (2)", name.c_str(), type);
}

std::string device_text(const Array &array) {
    return array.device == HEED_CPU ? "the CPU" : "CUDA device " + std::to_string(array.device_id);
}

template <class NdArray>
void describe(const NdArray &view, bool is_bfloat16, Array *array) {
    if (view.ndim() > static_cast<size_t>(max_rank)) {
        refuse("%s has %zu dimensions; it may have %d at most", array->name.c_str(), view.ndim(), max_rank);
    }
    array->rank = static_cast<int32_t>(view.ndim());
    array->device = device_of(array->name, view.device_type());
    array->device_id = view.device_id();
    int64_t last = 0;
    bool empty = false;
    for (int32_t i = 0; i < array->rank; i++) {
        const auto axis = static_cast<size_t>(i);
        array->shape[i] = static_cast<int64_t>(view.shape(axis));
        array->stride[i] = view.stride(axis);
        if (array->shape[i] > INT32_MAX) {
            refuse("axis %d of %s has %lld elements; it may have 2147483647 at most", i, array->name.c_str(),
                   static_cast<long long>(array->shape[i]));
        }
        empty = empty || array->shape[i] == 0;
        last += (array->shape[i] - 1) * array->stride[i];
    }
    array->tensor = {const_cast<void *>(static_cast<const void *>(view.data())),
                     empty ? 0 : std::max<int64_t>(last, 0) + 1,
                     is_bfloat16 ? HEED_BF16 : dtype_of(array->name, view.dtype())};
}

}  // namespace

std::string shape_text(const int64_t *extents, size_t rank) {
    std::string text = "[";
    for (size_t i = 0; i < rank; i++) text += (i > 0 ? ", " : "") + std::to_string(extents[i]);
    return text + "]";
}

std::vector<int64_t> Array::shape_with_last(int64_t last) const {
    std::vector<int64_t> result(shape, shape + rank);
    result.back() = last;
    return result;
}

bool Array::is_packed() const {
    int64_t expected = 1;
    for (int32_t i = rank; i-- > 0; expected *= shape[i]) {
        if (shape[i] == 0) return true;
        if (shape[i] != 1 && stride[i] != expected) return false;
    }
    return true;
}

void Array::check_shape(const std::vector<int64_t> &expected, const char *axes) const {
    if (expected.size() == static_cast<size_t>(rank) && std::equal(expected.begin(), expected.end(), shape)) return;
    refuse("%s has the shape %s; it must be %s, which is %s", name.c_str(),
           shape_text(shape, static_cast<size_t>(rank)).c_str(), axes,
           shape_text(expected.data(), expected.size()).c_str());
}

void Array::check_rank(int32_t expected, const char *axes) const {
    if (rank == expected) return;
    refuse("%s has the shape %s; it must have %d dimensions, %s", name.c_str(),
           shape_text(shape, static_cast<size_t>(rank)).c_str(), expected, axes);
}

void Array::check_packed() const {
    if (is_packed()) return;
    refuse("%s has the strides %s; it must be packed, row by row without gaps", name.c_str(),
           shape_text(stride, static_cast<size_t>(rank)).c_str());
}

void Array::check_dtype(heed_dtype expected) const {
    if (tensor.dtype == expected) return;
    refuse("%s has elements of %s; they must be %s", name.c_str(), dtype_name(tensor.dtype), dtype_name(expected));
}

void Array::check_device(const Array &other) const {
    if (device == other.device && device_id == other.device_id) return;
    refuse("%s is on %s; it must be on %s, as %s", name.c_str(), device_text(*this).c_str(), device_text(other).c_str(),
           other.name.c_str());
}

void Array::check_on(heed_device expected) const {
    if (device == expected) return;
    refuse("%s is on %s; it must be on %s", name.c_str(), device_text(*this).c_str(),
           expected == HEED_CPU ? "the CPU" : "CUDA");
}

Array import_array(const std::string &name, nb::handle object, Access access) {
    Array array;
    array.name = name;
    const bool is_bfloat16 = is_numpy_bfloat16(object);
    const nb::object viewed = is_bfloat16 ? object.attr("view")("uint16") : nb::borrow(object);
    if (access == Access::write) {
        if (!nb::try_cast(viewed, array.target)) {
            refuse("%s is a %s; it must be an array that can be written: NumPy's, or one that speaks DLPack",
                   name.c_str(), class_name(object).c_str());
        }
    } else if (!nb::try_cast(viewed, array.source)) {
        refuse("%s is a %s; it must be an array: NumPy's, or one that speaks DLPack", name.c_str(),
               class_name(object).c_str());
    }
    access == Access::write ? describe(array.target, is_bfloat16, &array) : describe(array.source, is_bfloat16, &array);
    return array;
}

const char *dtype_name(heed_dtype dtype) {
    switch (dtype) {
    case HEED_F32:
        return "float32";
    case HEED_F16:
        return "float16";
    case HEED_BF16:
        return "bfloat16";
    case HEED_I8:
        return "int8";
    case HEED_U8:
        return "uint8 or bool";
    case HEED_I32:
        return "int32";
    }
    return "?";
}

heed_layout layout_of(const Array &array, int32_t trailing) {
    heed_layout layout = {{0, 0, 0, 1}};
    const int32_t first = max_rank - array.rank - trailing;
    for (int32_t i = 0; i < array.rank; i++) layout.stride[first + i] = array.shape[i] == 1 ? 0 : array.stride[i];
    layout.stride[max_rank - 1] = 1;
    const int32_t innermost = array.rank - 1;
    if (trailing > 0 || innermost < 0) return layout;
    if (array.tensor.size > 0 && array.shape[innermost] > 1) layout.stride[max_rank - 1] = array.stride[innermost];
    if (layout.stride[max_rank - 1] == 0)
        refuse("the last axis of %s has the stride 0; it must be 1", array.name.c_str());
    return layout;
}

void broadcast_layout(const Array &array, int32_t shape[max_rank], heed_layout *layout) {
    std::fill(shape, shape + max_rank, 1);
    *layout = {{0, 0, 0, 1}};
    const int32_t first = max_rank - array.rank;
    for (int32_t i = 0; i < array.rank; i++) {
        if (array.shape[i] == 1 || (array.stride[i] == 0 && array.shape[i] != 0)) continue;
        shape[first + i] = array.extent(i);
        layout->stride[first + i] = array.stride[i];
    }
}

int32_t *lengths_of(const Array &array, int64_t batch) {
    array.check_shape({batch}, "[batch]");
    array.check_dtype(HEED_I32);
    array.check_packed();
    array.check_on(HEED_CPU);
    return static_cast<int32_t *>(array.tensor.data);
}

}  // namespace heed::python
