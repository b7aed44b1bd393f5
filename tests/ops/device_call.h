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

}  // namespace heed_test::ops
