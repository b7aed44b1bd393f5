// Layers, caches and weights survive the failure of any allocation; forward makes none once a shape has been seen.
#include "tests/layer/training_call.h"
#include "tests/layer/weights_bytes.h"
#include "tests/support/replaced_malloc.h"

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
                    const int64_t before = all_allocations;
                    const heed_status first = prompt.status(), next = step.status(), after = step.status(),
                                      uncached = plain.status();
                    during = all_allocations - before;
                    ASSERT_TRUE(!first && !next && !after && !uncached) << heed_last_error();
                    if (round == 0) {
                        EXPECT_GT(during, 0);  // plans are made
                    }
                }
                EXPECT_EQ(during, 0);
            }
        }
        const int32_t cu_seqlens[] = {0, 13, 20};
        GuardedCall packed(layer, dtype, 1, 20);
        packed.args.batch = 2;
        packed.args.cu_seqlens = cu_seqlens;
        ASSERT_EQ(packed.status(), HEED_OK) << heed_last_error();
        const int64_t before = all_allocations;
        ASSERT_EQ(packed.status(), HEED_OK) << heed_last_error();
        EXPECT_EQ(all_allocations - before, 0);
    }
}

TEST(Allocation, Case59_LayersCachesAndFilesSurviveEveryFailure) {
    SmallLayer small;
    small.add_rope();
    heed_layer *layer = nullptr;
    int64_t live = live_blocks;
    expect_survives_every_failure([&] { return heed_layer_create(&small.config, &small.weights, &layer); },
                                  [&] { return layer == nullptr && live_blocks == live; });
    for (const heed_kv_storage storage : {HEED_KV_CONTIGUOUS, HEED_KV_PAGED}) {
        const heed::CacheConfig config = cache_config(storage);
        heed_cache *cache = nullptr;
        live = live_blocks;
        expect_survives_every_failure([&] { return heed_cache_create(layer, &config, &cache); },
                                      [&] { return cache == nullptr && live_blocks == live; });
        heed_cache_destroy(cache);
    }
    heed_layer_destroy(layer);

    const MemoryFile memory;
    memory.write(weights_bytes("{\"a\":" + entry("F32", "[1]", "0", "4") + "}", "1234"));
    const std::string path = memory.path();
    heed_weights_file *file = nullptr;
    live = live_blocks;
    expect_survives_every_failure([&] { return heed_weights_open(path.c_str(), &file); },
                                  [&] { return file == nullptr && live_blocks == live; });
    heed_weights_close(file);
}

// The first call of a shape makes plans; a call that fails leaves y and the cache as they were.
TEST(Allocation, Case59_FirstCallsSurviveEveryFailure) {
    for (const heed_kv_storage storage : {HEED_KV_CONTIGUOUS, HEED_KV_PAGED}) {
        const SmallLayer small;
        const heed::Layer layer = small.make(), undisturbed = small.make();
        heed::Cache cache(layer, cache_config(storage)), other(undisturbed, cache_config(storage));
        GuardedCall call(layer, HEED_F32, 2, 20), expected(undisturbed, HEED_F32, 2, 20);
        call.args.cache = cache.get();
        expected.args.cache = other.get();
        // With one thread: what a pool's own threads allocate is not counted here.
        call.args.execution.num_threads = 1;
        call.args.x = call.x.tensor();
        expect_survives_every_failure([&] { return heed_layer_forward(layer.get(), &call.args); },
                                      [&] { return call.y_untouched() && cache.view().kv_lens[0] == 0; });
        EXPECT_EQ(call.y(), expected.run());
    }
}

TEST(Allocation, Case59_GradientsSurviveEveryFailure) {
    for (const bool cross : {false, true}) {
        const TrainedLayer weights(cross);
        const heed::Layer layer = weights.make(), undisturbed = weights.make();
        TrainingCall call(weights, layer), expected(weights, undisturbed);
        call.args.execution.num_threads = expected.args.execution.num_threads = 1;
        ASSERT_EQ(expected.status(), HEED_OK) << heed_last_error();
        // The plan's allocations, which come first, then without them those of the call itself.
        for (const char *const round : {"first calls", "calls of a known shape"}) {
            SCOPED_TRACE(round);
            expect_survives_every_failure([&] { return call.status(); }, [&] { return call.untouched(); });
            for (size_t n = 0; n < call.count(); n++) EXPECT_EQ(call.result(n), expected.result(n)) << n;
            call.reset();
        }
    }
}

}  // namespace
}  // namespace heed_test
