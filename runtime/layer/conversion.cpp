// heed_mha_to_gqa and back: heads of K and V weights, pooled and repeated.
#include <cinttypes>
#include <cstring>
#include <initializer_list>

#include "runtime/float_environment.h"
#include "runtime/ranges.h"
#include "runtime/status.h"
#include "runtime/weight_element.h"

namespace heed {
namespace {

struct Weights {
    const char *name;
    const heed_tensor *tensor;
    int64_t heads;
};

// Checks both sides; *head_elements is head_dim * dim.
heed_status check_conversion(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t dim,
                             const Weights &from, const Weights &to, int64_t *head_elements) {
    for (const Weights *side : {&from, &to}) {
        if (side->tensor == nullptr) return fail(HEED_INVALID_ARGUMENT, "%s is NULL", side->name);
    }
    heed_status status = check_int("num_heads", num_heads, 1, INT32_MAX);
    if (!status) status = check_int("num_kv_heads", num_kv_heads, 1, INT32_MAX);
    if (!status) status = check_int("head_dim", head_dim, 1, INT32_MAX);
    if (!status) status = check_int("dim", dim, 1, INT32_MAX);
    if (!status) status = check_float_dtype("dtype of the weights", from.tensor->dtype);
    if (status) return status;
    if (num_heads % num_kv_heads != 0) {
        return fail(HEED_INVALID_ARGUMENT, "num_heads is %d; it must be a multiple of num_kv_heads, which is %d",
                    num_heads, num_kv_heads);
    }
    *head_elements = int64_t{head_dim} * dim;
    int64_t total = 0;
    if (!checked_mul(*head_elements, num_heads, &total)) {
        return fail(HEED_INVALID_ARGUMENT, "%d heads of [%d, %d] elements are beyond 2^63-1", num_heads, head_dim, dim);
    }
    const heed_dtype dtype = from.tensor->dtype;
    MemoryRanges ranges;
    status = ranges.add(to.name, *to.tensor, dtype, to.heads * *head_elements, Access::write);
    return status ? status : ranges.add(from.name, *from.tensor, dtype, from.heads * *head_elements, Access::read);
}

}  // namespace
}  // namespace heed

extern "C" {

heed_status heed_mha_to_gqa(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t dim,
                            const heed_tensor *mha_weight, const heed_tensor *gqa_weight) {
    const heed::DefaultFloatEnvironment environment;
    int64_t head_elements = 0;
    const heed_status status =
        heed::check_conversion(num_heads, num_kv_heads, head_dim, dim, {"mha_weight", mha_weight, num_heads},
                               {"gqa_weight", gqa_weight, num_kv_heads}, &head_elements);
    if (status) return status;
    const int64_t group_size = num_heads / num_kv_heads;
    for (int64_t i = 0; i < num_kv_heads * head_elements; i++) {
        const int64_t first = i / head_elements * group_size * head_elements + i % head_elements;
        double sum = -0.0;  // zeros keep their sign
        for (int64_t h = 0; h < group_size; h++) {
            sum +=
                static_cast<double>(heed::load_element(mha_weight->data, first + h * head_elements, mha_weight->dtype));
        }
        const auto mean = static_cast<float>(sum / static_cast<double>(group_size));
        heed::store_element(gqa_weight->data, i, mha_weight->dtype, mean);
    }
    return HEED_OK;
}

heed_status heed_gqa_to_mha(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t dim,
                            const heed_tensor *gqa_weight, const heed_tensor *mha_weight) {
    const heed::DefaultFloatEnvironment environment;
    int64_t head_elements = 0;
    const heed_status status =
        heed::check_conversion(num_heads, num_kv_heads, head_dim, dim, {"gqa_weight", gqa_weight, num_kv_heads},
                               {"mha_weight", mha_weight, num_heads}, &head_elements);
    if (status) return status;
    const int64_t bytes = head_elements * heed::dtype_bytes(gqa_weight->dtype);
    const int32_t group_size = num_heads / num_kv_heads;
    for (int64_t h = 0; h < num_heads; h++) {
        std::memcpy(static_cast<char *>(mha_weight->data) + h * bytes,
                    static_cast<const char *>(gqa_weight->data) + h / group_size * bytes, static_cast<size_t>(bytes));
    }
    return HEED_OK;
}

}  // extern "C"
