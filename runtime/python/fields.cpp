#include "runtime/python/fields.h"

#include <cfenv>
#include <cstring>
#include <string>

#include <nanobind/stl/string.h>

#include "heed/fields.h"
#include "runtime/python/errors.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

struct Name {
    const char *text;
    int32_t value;
};

#define HEED_NAME(value, word) {word, value},
constexpr Name position_names[] = {HEED_POSITION_WORDS(HEED_NAME)};
constexpr Name weight_layout_names[] = {HEED_WEIGHT_LAYOUT_WORDS(HEED_NAME)};
constexpr Name qk_norm_names[] = {HEED_QK_NORM_WORDS(HEED_NAME)};
constexpr Name device_names[] = {HEED_DEVICE_WORDS(HEED_NAME)};
#undef HEED_NAME

[[noreturn]] void refuse_value(const char *field, nb::handle value, const char *allowed) {
    refuse("%s is %.200s; it must be %s", field, nb::cast<std::string>(nb::repr(value)).c_str(), allowed);
}

// Python's, or NumPy's, which was called bool_ once.
bool is_bool(nb::handle value) {
    if (PyBool_Check(value.ptr()) != 0) return true;
    if (PyFloat_CheckExact(value.ptr()) != 0 || PyLong_CheckExact(value.ptr()) != 0) return false;
    const auto name = nb::cast<std::string>(value.type().attr("__name__"));
    return name == "bool" || name == "bool_";
}

template <class T>
T number(const char *field, nb::handle value, const char *allowed) {
    T result = {};
    if (is_bool(value) || !nb::try_cast(value, result)) refuse_value(field, value, allowed);
    return result;
}

template <size_t n>
int32_t named(const char *field, nb::handle value, const Name (&names)[n]) {
    std::string allowed;
    for (const Name &name : names) {
        if (nb::isinstance<nb::str>(value) && std::strcmp(nb::cast<const char *>(value), name.text) == 0) {
            return name.value;
        }
        allowed += (allowed.empty() ? "'" : ", '") + std::string(name.text) + "'";
    }
    refuse_value(field, value, ("one of " + allowed).c_str());
}

template <class T>
void store(void *target, const Field &field, T value) {
    std::memcpy(static_cast<char *>(target) + field.offset, &value, sizeof(value));
}

// To the nearest, whatever the caller's rounding mode. Volatile: the conversion stays between the calls.
float real(const Field &field, nb::handle value) {
    const volatile double wide = number<double>(field.name, value, "a number");
    const int mode = std::fegetround();
    std::fesetround(FE_TONEAREST);
    const volatile auto nearest = static_cast<float>(wide);
    std::fesetround(mode);
    return nearest;
}

void set_field(const Field &field, nb::handle value, void *target) {
    switch (field.kind) {
    case Kind::boolean:
        if (!is_bool(value)) refuse_value(field.name, value, "True or False");
        return store(target, field, PyObject_IsTrue(value.ptr()) == 1);
    case Kind::int32:
        return store(target, field, number<int32_t>(field.name, value, "an integer, -2147483648..2147483647"));
    case Kind::uint64:
        return store(target, field, number<uint64_t>(field.name, value, "an integer, 0..2^64-1"));
    case Kind::real:
        return store(target, field, real(field, value));
    case Kind::position:
        return store(target, field, named(field.name, value, position_names));
    case Kind::weight_layout:
        return store(target, field, named(field.name, value, weight_layout_names));
    case Kind::qk_norm:
        return store(target, field, named(field.name, value, qk_norm_names));
    case Kind::device:
        return store(target, field, named(field.name, value, device_names));
    case Kind::text:
        if (!nb::isinstance<nb::str>(value)) refuse_value(field.name, value, "a string");
        return store(target, field, nb::cast<const char *>(value));
    }
}

}  // namespace

void set_fields(const nb::dict &values, const Field *fields, size_t num_fields, void *target) {
    for (const auto [key, value] : values) {
        const char *name = nb::cast<const char *>(key);
        const Field *field = fields;
        while (field != fields + num_fields && std::strcmp(field->name, name) != 0) field++;
        if (field == fields + num_fields) throw nb::type_error((std::string("unknown keyword: ") + name).c_str());
        set_field(*field, value, target);
    }
}

}  // namespace heed::python
