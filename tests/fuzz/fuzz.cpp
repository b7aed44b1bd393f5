#include "tests/fuzz/fuzz.h"

#include <cstdio>
#include <cstdlib>

#include "heed/heed.h"

namespace heed_test {

void require(bool holds, const std::string &promise) {
    if (holds) return;
    std::fprintf(stderr, "broken: %s\nlast error: %s\n", promise.c_str(), heed_last_error());
    std::abort();
}

}  // namespace heed_test
