// The sentence of heed_last_error, and how every check reports.
#pragma once

#include "heed/heed.h"

namespace heed {

// Stores the formatted sentence as this thread's last error and returns `status`. Allocates nothing; a sentence beyond
// the buffer is cut and ends in "...".
#ifndef __clang_analyzer__
__attribute__((format(printf, 2, 3))) heed_status fail(heed_status status, const char *format, ...);
#else  // The analyzer follows no call of variable arguments: this shows it what comes back.
template <typename... Arguments>
heed_status fail(heed_status status, const char *, const Arguments &...) {
    return status;
}
#endif

// "f32" and so on; "?" for values outside the enum.
const char *dtype_name(heed_dtype dtype);

// "HEED_CPU" or "HEED_CUDA"; "?" for values outside the enum.
const char *device_name(heed_device device);

// Bytes of one element; the dtype must be one of the enum.
int64_t dtype_bytes(heed_dtype dtype);

}  // namespace heed
