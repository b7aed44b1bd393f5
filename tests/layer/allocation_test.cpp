// forward allocates nothing once a shape has been seen. This program replaces malloc (glibc).
#include <atomic>
#include <cstdlib>

#include "small_layer.h"

extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
}

namespace {

std::atomic<int64_t> allocations{0};

}  // namespace

extern "C" {

void *malloc(size_t bytes) { return allocations++, __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return allocations++, __libc_calloc(count, bytes); }
void *realloc(void *block, size_t bytes) { return allocations++, __libc_realloc(block, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes) { return allocations++, __libc_memalign(alignment, bytes); }

}  // extern "C"

namespace heed_test {
namespace {

TEST(Allocation, NoneOnceTheShapesAreKnown) {
    for (const heed_dtype dtype : {HEED_F32, HEED_BF16}) {
        SmallLayer small(dtype);
        small.add_rope();
        const heed::Layer layer = small.make();
        for (const heed_kv_storage storage : {HEED_KV_CONTIGUOUS, HEED_KV_PAGED}) {
            for (const heed_dtype cache_dtype : {dtype, HEED_I8}) {
                heed::Cache cache(layer, cache_config(storage, cache_dtype));
                GuardedCall prompt(layer, dtype, 2, 20), step(layer, dtype, 2, 1), plain(layer, dtype, 2, 20);
                prompt.args.cache = step.args.cache = cache.get();
                prompt.args.x = prompt.x.tensor();
                int64_t during = 0;
                for (int32_t round = 0; round < 2; round++) {
                    cache.reset();
                    const int64_t before = allocations;
                    const heed_status first = prompt.status(), next = step.status(), after = step.status(),
                                      uncached = plain.status();
                    during = allocations - before;
                    ASSERT_TRUE(!first && !next && !after && !uncached) << heed_last_error();
                    if (round == 0) {
                        EXPECT_GT(during, 0);  // plans are made
                    }
                }
                EXPECT_EQ(during, 0);
            }
        }
    }
}

}  // namespace
}  // namespace heed_test
