#include "runtime/view.h"

#include <algorithm>
#include <cinttypes>

#include "runtime/status.h"

namespace heed {
namespace {

bool is_packed(const heed_layout &layout) {
    return std::all_of(layout.stride, layout.stride + 4, [](int64_t stride) { return stride == 0; });
}

bool is_empty(const Shape &shape) {
    return std::any_of(shape.extent, shape.extent + 4, [](int64_t extent) { return extent == 0; });
}

heed_status too_large(const char *name, const Shape &shape) {
    return fail(HEED_INVALID_ARGUMENT,
                "%s of [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "] elements reaches beyond 2^63-1 elements",
                name, shape.extent[0], shape.extent[1], shape.extent[2], shape.extent[3]);
}

heed_status check_strides(const char *name, const Shape &shape, const heed_layout &layout) {
    for (int i = 0; i < 4; i++) {
        if (shape.extent[i] > 1 && layout.stride[i] < 0) {
            return fail(HEED_UNSUPPORTED, "%s_layout.stride[%d] is %" PRId64 "; strides must be >= 0", name, i,
                        layout.stride[i]);
        }
    }
    if (shape.extent[3] > 1 && layout.stride[3] == 0) {
        return fail(HEED_INVALID_ARGUMENT,
                    "%s_layout.stride[3] is 0 with other strides; it must be 1, or all four 0 for a packed tensor",
                    name);
    }
    if (shape.extent[3] > 1 && layout.stride[3] != 1) {
        return fail(HEED_UNSUPPORTED, "%s_layout.stride[3] is %" PRId64 "; the innermost stride must be 1", name,
                    layout.stride[3]);
    }
    return HEED_OK;
}

// The canonical strides of a packed tensor or of a valid layout.
bool resolve_strides(const Shape &shape, const heed_layout &layout, View *view) {
    int64_t inner = 1;
    const bool packed = is_packed(layout);
    for (int i = 3; i >= 0; i--) {
        view->stride[i] = shape.extent[i] == 1 ? (i == 3 ? 1 : 0) : packed ? inner : layout.stride[i];
        if (packed && !checked_mul(inner, shape.extent[i], &inner)) return false;
    }
    return true;
}

bool resolve_span(View *view) {
    int64_t last = 0;
    for (int i = 0; i < 4; i++) {
        int64_t reach = 0;
        if (!checked_mul(view->extent[i] - 1, view->stride[i], &reach) || !checked_add(last, reach, &last))
            return false;
    }
    return checked_add(last, 1, &view->span);
}

// With dimensions sorted by stride, each stride must pass over all elements of the smaller ones.
heed_status check_self_overlap(const char *name, const View &view) {
    int order[4] = {0, 1, 2, 3};
    std::sort(order, order + 4, [&](int a, int b) { return view.stride[a] < view.stride[b]; });
    int64_t inner_span = 1;
    for (int i : order) {
        if (view.extent[i] == 1) continue;
        if (view.stride[i] < inner_span) {
            return fail(HEED_INVALID_ARGUMENT,
                        "%s_layout.stride[%d] is %" PRId64 "; an output may not overlap itself: at least %" PRId64,
                        name, i, view.stride[i], inner_span);
        }
        inner_span += (view.extent[i] - 1) * view.stride[i];
    }
    return HEED_OK;
}

}  // namespace

heed_status make_view(const char *name, const Shape &shape, const heed_layout &layout, Access access, View *view) {
    *view = View{};
    std::copy(shape.extent, shape.extent + 4, view->extent);
    if (!is_packed(layout)) {
        if (const heed_status status = check_strides(name, shape, layout)) return status;
    }
    if (is_empty(shape)) return HEED_OK;
    if (!resolve_strides(shape, layout, view) || !resolve_span(view)) return too_large(name, shape);
    return access == Access::write ? check_self_overlap(name, *view) : HEED_OK;
}

heed_status make_broadcast_view(const char *name, const Shape &full, const int32_t shape[4], const heed_layout &layout,
                                View *view) {
    Shape stored = full;
    for (int i = 0; i < 4; i++) {
        if (shape[i] == 0 || shape[i] == full.extent[i]) continue;
        if (shape[i] != 1) {
            return fail(HEED_INVALID_ARGUMENT, "%s_shape[%d] is %d; it must be 1, %" PRId64 " or 0 for that extent",
                        name, i, shape[i], full.extent[i]);
        }
        stored.extent[i] = 1;
    }
    if (const heed_status status = make_view(name, stored, layout, Access::read, view)) return status;
    for (int i = 0; i < 4; i++) {
        if (stored.extent[i] == 1) view->stride[i] = 0;
        view->extent[i] = full.extent[i];
    }
    if (is_empty(full)) view->span = 0;
    return HEED_OK;
}

}  // namespace heed
