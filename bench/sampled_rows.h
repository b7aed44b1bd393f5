// fp64 attention of a few rows: enough to know that what is timed is right.
#pragma once

#include "cases.h"

namespace heed_bench {

struct CheckResult {
    double rms, max_error;
    double bound_ratio;  // largest error / allowed error; above 1 is wrong
};

// Compares `out` with fp64 on four (sequence, head) pairs and up to 16 query rows of each: the first, the last, some
// between. `mask` and `bias` are read only where the case has them. An error is allowed up to
// (8 + largest visible |logit|) * 2^-23 * largest visible |v|; a NaN is an infinite error.
CheckResult compare_sampled_rows(const Case &c, const float *q, const float *k, const float *v, const uint8_t *mask,
                                 const float *bias, const float *out);

}  // namespace heed_bench
