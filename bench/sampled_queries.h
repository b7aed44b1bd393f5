// The fp64 reference on a few queries: enough to know that what is timed is right.
#pragma once

#include "bench/cases.h"

namespace heed_bench {

struct CheckResult {
    double rms, max_error;
    double bound_ratio;  // largest error / allowed error; above 1 is wrong
};

// Compares the call's `out` with the reference on four (sequence, head) pairs and up to 16 queries of each: the
// first, the last, some between. tolerance.h says how far an element may be off; 16-bit kernels may round the softmax's
// weights. A NaN is an infinite error.
CheckResult compare_sampled_queries(const Case &c, const heed_args &args);

}  // namespace heed_bench
