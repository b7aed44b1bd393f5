#include "bench/element_types.h"

#include <stdexcept>

#include "runtime/reference/element.h"

namespace heed_bench {

namespace {

template <typename Element, typename Widen>
std::vector<float> widen_all(const void *data, int64_t first, int64_t count, const Widen &widen) {
    const Element *from = static_cast<const Element *>(data) + first;
    std::vector<float> wide(static_cast<size_t>(count));
    for (size_t i = 0; i < wide.size(); i++) {
        wide[i] = widen(from[i]);
    }
    return wide;
}

}  // namespace

heed_dtype dtype_of(const std::string &name) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16, HEED_I8}) {
        if (name == heed_reference::dtype_name(dtype)) {
            return dtype;
        }
    }
    throw std::invalid_argument("\"" + name + "\" is no element type: f32, f16, bf16, i8");
}

std::vector<float> widened(heed_dtype dtype, const void *data, int64_t first, int64_t count) {
    switch (dtype) {
    case HEED_F16:
    case HEED_BF16:
        return widen_all<uint16_t>(data, first, count,
                                   [dtype](uint16_t bits) { return heed_reference::from_bits(dtype, bits); });
    case HEED_I8:
        return widen_all<int8_t>(data, first, count, [](int8_t x) { return static_cast<float>(x); });
    default:
        return widen_all<float>(data, first, count, [](float x) { return x; });
    }
}

}  // namespace heed_bench
