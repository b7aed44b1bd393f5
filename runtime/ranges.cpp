#include "runtime/ranges.h"

#include <cinttypes>
#include <cstring>

#include "runtime/status.h"
#include "runtime/validate.h"

namespace heed {
namespace {

heed_status check_capacity(const char *name, const heed_tensor &tensor, heed_dtype dtype, int64_t span) {
    if (tensor.dtype != dtype) {
        return fail(HEED_INVALID_ARGUMENT, "%s.dtype is %s (%d); it must be %s (%d)", name, dtype_name(tensor.dtype),
                    static_cast<int>(tensor.dtype), dtype_name(dtype), static_cast<int>(dtype));
    }
    if (tensor.data != nullptr && tensor.size < span) {
        return fail(HEED_INVALID_ARGUMENT, "%s.size is %" PRId64 "; its layout spans %" PRId64 " elements", name,
                    tensor.size, span);
    }
    return HEED_OK;
}

heed_status check_range(const char *name, const void *data, int64_t count, int64_t element_bytes, uintptr_t *end) {
    if (data == nullptr) {
        return fail(HEED_INVALID_ARGUMENT, "%s is NULL; it must point to %" PRId64 " elements", name, count);
    }
    const auto begin = reinterpret_cast<uintptr_t>(data);
    if (begin % static_cast<uintptr_t>(element_bytes) != 0) {
        return fail(HEED_INVALID_ARGUMENT, "%s is at %p; it must be aligned to %" PRId64 " bytes", name, data,
                    element_bytes);
    }
    int64_t bytes = 0;
    if (!checked_mul(count, element_bytes, &bytes) ||
        __builtin_add_overflow(begin, static_cast<uintptr_t>(bytes), end)) {
        return fail(HEED_INVALID_ARGUMENT, "%s at %p with %" PRId64 " elements wraps around the address space", name,
                    data, count);
    }
    return HEED_OK;
}

// Elements of the part of a view inside one index of dimension `dim`: 0 when the view is empty.
int64_t inner_span(const View &view, int dim) {
    int64_t last = 0;
    for (int i = dim + 1; i < 4; i++) last += (view.extent[i] - 1) * view.stride[i];
    return last + 1;
}

// Whether each index of dimension `dim` puts a part of a and a part of b into periods of equal length, apart from each
// other. Strides of one index have no meaning.
bool interleave_at(int dim, const View &a, const View &b, int64_t distance) {
    const int64_t period = a.stride[dim];
    if (period <= 0 || b.stride[dim] != period) return false;
    for (int i = 0; i < dim; i++) {
        if (a.extent[i] > 1 && (a.stride[i] % period != 0 || b.stride[i] != a.stride[i])) return false;
    }
    const int64_t shift = (distance % period + period) % period;
    return inner_span(a, dim) <= shift && shift + inner_span(b, dim) <= period;
}

}  // namespace

heed_status MemoryRanges::add(const char *name, const void *data, int64_t count, int64_t element_bytes, Access access,
                              const char *beside) {
    if (count == 0) return HEED_OK;
    Range range = {name, reinterpret_cast<uintptr_t>(data), 0};
    if (const heed_status status = check_range(name, data, count, element_bytes, &range.end)) return status;
    for (int32_t i = 0; i < num_written_; i++) {
        const Range &written = written_[i];
        if (beside != nullptr && std::strcmp(beside, written.name) == 0) continue;
        if (range.begin < written.end && written.begin < range.end) {
            return fail(HEED_INVALID_ARGUMENT, "%s overlaps %s; what is written may overlap nothing else", written.name,
                        name);
        }
    }
    if (access == Access::write) written_[num_written_++] = range;
    return HEED_OK;
}

heed_status MemoryRanges::add(const char *name, const heed_tensor &tensor, heed_dtype dtype, int64_t span,
                              Access access, const char *beside) {
    if (span == 0) return HEED_OK;
    if (const heed_status status = check_capacity(name, tensor, dtype, span)) return status;
    return add(name, tensor.data, span, dtype_bytes(dtype), access, beside);
}

bool interleave(const View &a, const View &b, int64_t distance) {
    for (int dim = 0; dim < 3; dim++) {
        if (interleave_at(dim, a, b, distance)) return true;
    }
    return false;
}

heed_status invalid_dtype(const char *name, heed_dtype value, const char *allowed) {
    return fail(HEED_INVALID_ARGUMENT, "%s is %s (%d); it must be %s", name, dtype_name(value), static_cast<int>(value),
                allowed);
}

bool same_layout(const View &a, const View &b) {
    for (int i = 0; i < 4; i++) {
        if (a.extent[i] != b.extent[i] || (a.extent[i] > 1 && a.stride[i] != b.stride[i])) return false;
    }
    return true;
}

heed_status out_of_range(const char *name, double value, int digits, const char *allowed) {
    return fail(HEED_INVALID_ARGUMENT, "%s is %.*g; it must be %s", name, digits, value, allowed);
}

heed_status check_flag(const char *name, const bool *flag) {
    unsigned char byte = 0;
    std::memcpy(&byte, flag, 1);
    return check_int(name, byte, 0, 1);
}

heed_status check_int(const char *name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "%s is %" PRId64 "; it must be %" PRId64 "..%" PRId64, name, value, low, high);
}

heed_status check_struct_size(const char *name, uint32_t struct_size, size_t known, const char *init) {
    if (struct_size == known) return HEED_OK;
    if (struct_size == 0 && init != nullptr) {
        return fail(HEED_INVALID_ARGUMENT, "%s.struct_size is 0; call %s first", name, init);
    }
    if (struct_size == 0) {
        return fail(HEED_INVALID_ARGUMENT, "%s.struct_size is 0; set it to sizeof(%s)", name, name);
    }
    return fail(HEED_INVALID_ARGUMENT, "%s.struct_size is %u; this library (%s) knows %zu", name, struct_size,
                heed_version(), known);
}

heed_status check_given(const char *function, const char *name, const void *pointer) {
    return pointer != nullptr ? HEED_OK : fail(HEED_INVALID_ARGUMENT, "%s: %s is NULL", function, name);
}

heed_status check_float_dtype(const char *name, heed_dtype dtype) {
    if (dtype == HEED_F32 || dtype == HEED_F16 || dtype == HEED_BF16) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "%s is %s (%d); it must be HEED_F32 (0), HEED_F16 (1) or HEED_BF16 (2)", name,
                dtype_name(dtype), static_cast<int>(dtype));
}

heed_status check_head_dim(const char *name, int32_t head_dim) { return check_int(name, head_dim, 1, max_head_dim); }

}  // namespace heed
