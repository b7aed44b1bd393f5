// Calls in another floating-point state than a process starts in.
#pragma once

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include "heed/heed.h"

namespace heed_test {

constexpr unsigned int default_state = 0x1f80;

// Calls with the caller's floating-point state set to `state`, which the call must leave as it is, sticky flags
// included.
template <typename Call>
void expect_status(const Call &call, unsigned int state, heed_status expected) {
    const unsigned int before = _mm_getcsr();
    _mm_setcsr(state);
    const heed_status status = call();
    const unsigned int after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(status, expected) << heed_last_error();
    EXPECT_EQ(after, state);
}

}  // namespace heed_test
