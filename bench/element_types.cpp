#include "bench/element_types.h"

#include <stdexcept>

#include "runtime/reference/element.h"
#include "runtime/reference/placement.h"

namespace heed_bench {

heed_dtype dtype_of(const std::string &name) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16, HEED_I8}) {
        if (name == heed_reference::dtype_name(dtype)) {
            return dtype;
        }
    }
    throw std::invalid_argument("\"" + name + "\" is no element type: f32, f16, bf16, i8");
}

std::vector<float> widened(heed_dtype dtype, const void *data, int64_t first, int64_t count) {
    std::vector<float> wide;
    for (int64_t i = first; i < first + count; i++) {
        wide.push_back(dtype == HEED_I8 ? static_cast<const int8_t *>(data)[i] : heed_reference::load(data, i, dtype));
    }
    return wide;
}

}  // namespace heed_bench
