#include "runtime/python/array.h"

#include <algorithm>

#include <nanobind/stl/string.h>

#include "runtime/python/errors.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

std::string class_name(nb::handle object) { return nb::cast<std::string>(nb::str(object.type().attr("__name__"))); }

// The framework's class of arrays, or a null handle where nobody has imported it. NumPy and PyTorch keep theirs.
nb::handle class_of(const char *module, const char *name, nb::handle *known) {
    if (!known->is_valid()) {
        PyObject *const modules = PyImport_GetModuleDict();
        PyObject *const found = PyDict_GetItemString(modules, module);
        if (found == nullptr || !nb::hasattr(found, name)) return {};
        *known = nb::handle(found).attr(name).inc_ref();
    }
    return *known;
}

bool is_instance(nb::handle object, nb::handle of_class) {
    return of_class.is_valid() && PyType_IsSubtype(reinterpret_cast<PyTypeObject *>(object.type().ptr()),
                                                   reinterpret_cast<PyTypeObject *>(of_class.ptr())) != 0;
}

// ml_dtypes' bfloat16, which neither DLPack nor the buffer protocol of NumPy names, has dtype.kind "V".
bool is_numpy_bfloat16(nb::handle object) {
    static nb::handle ndarray;
    if (!is_instance(object, class_of("numpy", "ndarray", &ndarray))) return false;
    const nb::object dtype = object.attr("dtype");
    return nb::cast<std::string>(dtype.attr("kind")) == "V" &&
           nb::cast<std::string>(nb::str(dtype.attr("name"))) == "bfloat16";
}

nb::handle tensor_class() {
    static nb::handle tensor;
    return class_of("torch", "Tensor", &tensor);
}

bool is_true(nb::handle object, const char *attribute) { return nb::cast<bool>(object.attr(attribute)); }

// DLPack's table of a framework's functions, from version 1.3 on.
struct ExchangeApi {
    uint32_t major, minor;
    ExchangeApi *previous;
    void *others[3];
    int (*view)(void *object, nb::dlpack::dltensor *view);  // of memory that the object keeps; not 0: an exception
};

// PyTorch's, or NULL.
const ExchangeApi *find_torch_api() {
    constexpr const char *name = "__dlpack_c_exchange_api__";
    if (!nb::hasattr(tensor_class(), name)) return nullptr;
    const nb::object capsule = tensor_class().attr(name);
    const void *const found = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
    if (found == nullptr) PyErr_Clear();
    const auto *api = static_cast<const ExchangeApi *>(found);
    return api != nullptr && api->major == 1 && api->view != nullptr ? api : nullptr;
}

// For a PyTorch tensor on the CPU, without a capsule. False for what goes the long way: subclasses, tensors whose
// memory is not their value or that require a gradient, other devices.
bool view_tensor(nb::handle object, nb::dlpack::dltensor *view) {
    if (object.type().ptr() != tensor_class().ptr()) return false;
    static const ExchangeApi *const api = find_torch_api();
    static PyObject *const requires_grad = PyUnicode_InternFromString("requires_grad");
    static PyObject *const is_neg = PyUnicode_InternFromString("is_neg");
    if (api == nullptr) return false;
    const auto requires = nb::steal(PyObject_GetAttr(object.ptr(), requires_grad));
    const auto negative = nb::steal(PyObject_CallMethodNoArgs(object.ptr(), is_neg));
    if (requires.ptr() != Py_False || negative.ptr() != Py_False || api->view(object.ptr(), view) != 0) {
        PyErr_Clear();
        return false;
    }
    return view->device.device_type == nb::device::cpu::value;
}

// What nanobind reads: of other PyTorch tensors on the CPU the capsule that its own function makes, in 0.2 us; through
// Tensor.__dlpack__, which is Python, it takes 1.6 us.
nb::object exported(const std::string &name, nb::handle object) {
    static nb::handle to_dlpack;
    if (is_instance(object, tensor_class()) && is_true(object, "requires_grad")) {
        refuse("%s requires a gradient; it must be %s.detach()", name.c_str(), name.c_str());
    }
    if (is_numpy_bfloat16(object)) return object.attr("view")("uint16");
    if (!is_instance(object, tensor_class()) || !is_true(object, "is_cpu") || nb::cast<bool>(object.attr("is_neg")()) ||
        nb::cast<bool>(object.attr("is_conj")())) {
        return nb::borrow(object);
    }
    try {
        return class_of("torch", "to_dlpack", &to_dlpack)(object);
    } catch (const nb::python_error &) {
        refuse("%s is a tensor that PyTorch does not export by DLPack; it must be dense, with memory of its own",
               name.c_str());
    }
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

// What DLPack tells of an array.
struct Description {
    const void *data;
    int32_t device_type, device_id;
    size_t rank;
    nb::dlpack::dtype dtype;
    const int64_t *shape, *stride;
};

void describe(const Description &view, bool is_bfloat16, Array *array) {
    if (view.rank > static_cast<size_t>(max_rank)) {
        refuse("%s has %zu dimensions; it may have %d at most", array->name.c_str(), view.rank, max_rank);
    }
    array->rank = static_cast<int32_t>(view.rank);
    array->device = device_of(array->name, view.device_type);
    array->device_id = view.device_id;
    int64_t last = 0;
    bool empty = false;
    for (int32_t i = 0; i < array->rank; i++) {
        array->shape[i] = view.shape[i];
        array->stride[i] = view.stride[i];
        if (array->shape[i] > INT32_MAX) {
            refuse("axis %d of %s has %lld elements; it may have 2147483647 at most", i, array->name.c_str(),
                   static_cast<long long>(array->shape[i]));
        }
        empty = empty || array->shape[i] == 0;
        last += (array->shape[i] - 1) * array->stride[i];
    }
    array->tensor = {const_cast<void *>(view.data), empty ? 0 : std::max<int64_t>(last, 0) + 1,
                     is_bfloat16 ? HEED_BF16 : dtype_of(array->name, view.dtype)};
}

template <class NdArray>
Description description_of(const NdArray &view) {
    return {view.data(),  view.device_type(), view.device_id(), view.ndim(),
            view.dtype(), view.shape_ptr(),   view.stride_ptr()};
}

Description description_of(const nb::dlpack::dltensor &view) {
    return {static_cast<const char *>(view.data) + view.byte_offset,
            view.device.device_type,
            view.device.device_id,
            static_cast<size_t>(view.ndim),
            view.dtype,
            view.shape,
            view.strides};
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
    if (std::find(shape, shape + rank, 0) != shape + rank) return true;
    int64_t expected = 1;
    for (int32_t i = rank; i-- > 0; expected *= shape[i]) {
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

void Array::check_broadcast(const std::vector<int64_t> &full, const char *axes) const {
    const auto first = static_cast<std::ptrdiff_t>(full.size()) - rank;
    bool fits = first >= 0;
    for (int32_t i = 0; fits && i < rank; i++) fits = shape[i] == 1 || shape[i] == full[static_cast<size_t>(first + i)];
    if (fits) return;
    refuse("%s has the shape %s; it must broadcast to %s, which is %s", name.c_str(),
           shape_text(shape, static_cast<size_t>(rank)).c_str(), axes, shape_text(full.data(), full.size()).c_str());
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

void Array::check_packed(heed_dtype expected) const {
    check_dtype(expected);
    check_packed();
}

void Array::check_dtype(heed_dtype expected) const {
    if (tensor.dtype == expected) return;
    refuse("%s has elements of %s; they must be %s", name.c_str(), dtype_name(tensor.dtype), dtype_name(expected));
}

void Array::check_like(const Array &other) const {
    check_shape({other.shape, other.shape + other.rank}, (other.name + "'s").c_str());
    check_dtype(other.tensor.dtype);
    check_device(other);
    for (int32_t i = 0; i < rank; i++) {
        if (shape[i] < 2 || stride[i] == other.stride[i]) continue;
        refuse("%s has the strides %s; they must be those of %s, which are %s", name.c_str(),
               shape_text(stride, static_cast<size_t>(rank)).c_str(), other.name.c_str(),
               shape_text(other.stride, static_cast<size_t>(rank)).c_str());
    }
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
    nb::dlpack::dltensor view;
    if (view_tensor(object, &view)) {
        array.torch = nb::borrow(object);
        describe(description_of(view), false, &array);
        return array;
    }
    const nb::object viewed = exported(name, object);
    if (access == Access::write) {
        if (!nb::try_cast(viewed, array.target)) {
            refuse("%s is a %s; it must be an array that can be written: NumPy's, or one that speaks DLPack",
                   name.c_str(), class_name(object).c_str());
        }
    } else if (!nb::try_cast(viewed, array.source)) {
        refuse("%s is a %s; it must be an array: NumPy's, or one that speaks DLPack", name.c_str(),
               class_name(object).c_str());
    }
    const bool is_bfloat16 = is_numpy_bfloat16(object);
    describe(access == Access::write ? description_of(array.target) : description_of(array.source), is_bfloat16,
             &array);
    return array;
}

void Array::keep(int32_t axis, int64_t first, int64_t count) {
    const int64_t bytes = tensor.dtype == HEED_F32 ? 4 : 2;
    tensor.data = static_cast<char *>(tensor.data) + first * stride[axis] * bytes;
    tensor.size = count == 0 || tensor.size == 0 ? 0 : tensor.size - (shape[axis] - count) * stride[axis];
    shape[axis] = count;
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
    array.check_packed(HEED_I32);
    array.check_on(HEED_CPU);
    return static_cast<int32_t *>(array.tensor.data);
}

}  // namespace heed::python
