// The memory of one call: NULL rules, capacities, alignment, and that what is written overlaps nothing else.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "heed/heed.h"
#include "runtime/view.h"

namespace heed {

// Add all that is written first: each range is compared with the written ones when it is added. `beside` names a
// written range that this one may share addresses with (in place, or interleaved).
class MemoryRanges {
public:
    // `count` elements of `element_bytes` bytes at `data`, which may be NULL when count is 0.
    heed_status add(const char *name, const void *data, int64_t count, int64_t element_bytes, Access access,
                    const char *beside = nullptr);

    // A tensor of `dtype` whose layout spans `span` elements.
    heed_status add(const char *name, const heed_tensor &tensor, heed_dtype dtype, int64_t span, Access access,
                    const char *beside = nullptr);

private:
    struct Range {
        const char *name;
        uintptr_t begin, end;
    };
    static constexpr int32_t max_written = 24;
    Range written_[max_written];
    int32_t num_written_ = 0;
};

// The layouts name the same elements: equal strides wherever there is more than one element.
bool same_layout(const View &a, const View &b);

// Whether views in one allocation, b `distance` elements after a, alternate along one dimension: each of its indices
// holds first a part of one and then a part of the other.
bool interleave(const View &a, const View &b, int64_t distance);

// INVALID_ARGUMENT: "<name> is <value>; it must be <allowed>", with `digits` digits of the value.
heed_status out_of_range(const char *name, double value, int digits, const char *allowed);

// A number is in least..most, or a NaN as `initial`. The message is made apart: a plan checks some 40 fields.
inline heed_status check_range(const char *name, double value, int digits, double initial, double least, double most,
                               const char *allowed) {
    if (std::isnan(value) ? std::isnan(initial) : value >= least && value <= most) return HEED_OK;
    return out_of_range(name, value, digits, allowed);
}

// Refuses an element type, by its name.
heed_status invalid_dtype(const char *name, heed_dtype value, const char *allowed);

// The same of a field in untrusted memory with its entry of heed/fields.h: a flag is read as a byte.
template <class T>
heed_status check_field(const char *name, const T &field, double initial, double least, double most,
                        const char *allowed) {
    std::conditional_t<std::is_same_v<T, bool>, unsigned char, T> value;
    std::memcpy(&value, &field, sizeof(field));
    if constexpr (std::is_same_v<T, heed_dtype>) {
        if (value < least || value > most) return invalid_dtype(name, value, allowed);
    }
    const int digits = std::is_floating_point_v<T> ? 6 : 10;
    return check_range(name, static_cast<double>(value), digits, initial, least, most, allowed);
}

// A flag of an argument struct, as a byte: it comes from untrusted memory.
heed_status check_flag(const char *name, const bool *flag);

// value is in low..high.
heed_status check_int(const char *name, int64_t value, int64_t low, int64_t high);

// struct_size of the struct called `name`; init: the function that fills the struct, named when struct_size is 0.
heed_status check_struct_size(const char *name, uint32_t struct_size, size_t known, const char *init = nullptr);

// Refuses a pointer that is NULL: "<function>: <name> is NULL".
heed_status check_given(const char *function, const char *name, const void *pointer);

// The same of a struct of type `type`, and its struct_size.
template <class Struct>
heed_status check_given(const char *function, const char *name, const char *type, const Struct *pointer) {
    const heed_status status = check_given(function, name, pointer);
    return status ? status : check_struct_size(type, pointer->struct_size, sizeof(Struct));
}

// HEED_F32, HEED_F16 or HEED_BF16.
heed_status check_float_dtype(const char *name, heed_dtype dtype);

// 1..640.
heed_status check_head_dim(const char *name, int32_t head_dim);

}  // namespace heed
