// fp64 attention of a few rows: enough to know that what is timed is right.
#pragma once

#include "cases.h"

namespace heed_bench {

struct CheckResult {
    double rms, max_error;
    double bound_ratio;  // largest error / allowed error; above 1 is wrong
};

// Compares the call's `out` with fp64 on four (sequence, head) pairs and up to 16 query rows of each: the first, the
// last, some between. An error is allowed up to
//   (8 + largest visible |logit|) * 2^-23 * largest visible |v| + u * |out| + 2 u * sqrt(sum (p v)^2)
// where u is the rounding of the element type: out is rounded to it, and rows may round the softmax's weights p, each
// error independent of the others; the factor is 3.5 standard deviations. A NaN is an infinite error.
CheckResult compare_sampled_rows(const Case &c, const heed_args &args);

}  // namespace heed_bench
