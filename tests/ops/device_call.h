// The operations on the device of the tests: on CUDA with copies of their tensors, which come back when the stream has
// done its work. Metadata stays where it is.
#pragma once

#include "heed/heed.h"

namespace heed_test::ops {

heed_status call_rope(const heed_rope_args *args);
heed_status call_kv_append(const heed_kv_append_args *args);
heed_status call_kv_copy(const heed_kv_view *cache, const heed_kv_range *ranges, int32_t num_ranges,
                         const heed_execution *execution);
heed_status call_merge_states(const heed_merge_args *args);
// On CUDA, with weights as for heed_linear_pack that are on the device during the call.
heed_status call_linear_on_cuda(heed_dtype dtype, int32_t dim_in, int32_t dim_out, const heed_tensor &weight,
                                int64_t row_stride, const heed_tensor *bias, const heed_linear_args &args);

}  // namespace heed_test::ops
