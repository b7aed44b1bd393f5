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

// Sets the fields of `target` that `values` has under their names. INVALID_ARGUMENT names a value of another type or
// out of the type's range. A name that no field has is a TypeError. Texts live as long as their Python values.
void set_fields(const nanobind::dict &values, const Field *fields, size_t num_fields, void *target);

template <size_t n>
void set_fields(const nanobind::dict &values, const Field (&fields)[n], void *target) {
    set_fields(values, fields, n, target);
}

}  // namespace heed::python
