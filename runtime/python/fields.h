// Plain fields of Heed's structs by their names, from a dict of Python values.
#pragma once

#include <cstddef>

#include <nanobind/nanobind.h>

#include "heed/heed.hpp"

namespace heed::python {

enum class Kind { boolean, int32, uint64, real, position, weight_layout, qk_norm, device, text };

struct Field {
    const char *name;
    Kind kind;
    size_t offset;
};

// The kind of a field, by its type.
constexpr Kind kind_of(bool) { return Kind::boolean; }
constexpr Kind kind_of(int32_t) { return Kind::int32; }
constexpr Kind kind_of(uint64_t) { return Kind::uint64; }
constexpr Kind kind_of(float) { return Kind::real; }
constexpr Kind kind_of(heed_position) { return Kind::position; }
constexpr Kind kind_of(heed_weight_layout) { return Kind::weight_layout; }
constexpr Kind kind_of(heed_qk_norm) { return Kind::qk_norm; }
constexpr Kind kind_of(heed_device) { return Kind::device; }
constexpr Kind kind_of(const char *) { return Kind::text; }

// Sets the fields of `target` that `values` has under their names. INVALID_ARGUMENT names a value of another type or
// out of the type's range. A name that no field has is a TypeError. Texts live as long as their Python values.
void set_fields(const nanobind::dict &values, const Field *fields, size_t num_fields, void *target);

template <size_t n>
void set_fields(const nanobind::dict &values, const Field (&fields)[n], void *target) {
    set_fields(values, fields, n, target);
}

}  // namespace heed::python
