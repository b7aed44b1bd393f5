// Replaces malloc (glibc) in the program whose one file includes this: allocations are counted and can be made to fail.
// Not for programs with sanitizers, which do the same.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "heed/heed.h"

extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);
}

namespace heed_test {

// Allocations so far, and blocks that live.
inline std::atomic<int64_t> all_allocations{0}, live_blocks{0};

// How many allocations of the calling thread succeed before all others fail; -1: all succeed.
inline thread_local int64_t remaining_allocations = -1;

template <class Allocate>
void *allocate_if_allowed(Allocate allocate) {
    all_allocations++;
    if (remaining_allocations == 0) return nullptr;
    if (remaining_allocations > 0) remaining_allocations--;
    return allocate();
}

template <class Allocate>
void *new_block(Allocate allocate) {
    void *const block = allocate_if_allowed(allocate);
    live_blocks += block != nullptr;
    return block;
}

// Fails the N-th allocation of call() for N = 0, 1, ... until it succeeds: HEED_OUT_OF_MEMORY each time, and
// `untouched` holds.
template <class Call, class Untouched>
void expect_survives_every_failure(const Call &call, const Untouched &untouched) {
    for (int64_t failures = 0;; failures++) {
        remaining_allocations = failures;
        const heed_status status = call();
        remaining_allocations = -1;
        if (status == HEED_OK) {
            EXPECT_GT(failures, 0);
            return;
        }
        ASSERT_EQ(status, HEED_OUT_OF_MEMORY) << heed_last_error() << ", allocation " << failures;
        ASSERT_TRUE(untouched()) << "allocation " << failures;
        ASSERT_LT(failures, 10000);
    }
}

}  // namespace heed_test

// Seen by the C++ library too, whatever -fvisibility says.
#pragma GCC visibility push(default)
extern "C" {

void *malloc(size_t bytes) {
    return heed_test::new_block([&] { return __libc_malloc(bytes); });
}
void *calloc(size_t count, size_t bytes) {
    return heed_test::new_block([&] { return __libc_calloc(count, bytes); });
}
void *realloc(void *block, size_t bytes) {
    const auto allocate = [&] { return __libc_realloc(block, bytes); };
    return block == nullptr ? heed_test::new_block(allocate) : heed_test::allocate_if_allowed(allocate);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    return heed_test::new_block([&] { return __libc_memalign(alignment, bytes); });
}
void free(void *block) {
    heed_test::live_blocks -= block != nullptr;
    __libc_free(block);
}

}  // extern "C"
#pragma GCC visibility pop
