#include "ceilings.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <thread>

#include "ceilings_loops.h"
#include "machine.h"

namespace heed_bench {

namespace {

constexpr int num_tries = 12;
constexpr int num_dram_tries = 5;

struct Unmap {
    size_t bytes;
    void operator()(float *memory) const { munmap(memory, bytes); }
};
using Memory = std::unique_ptr<float, Unmap>;

// Page-aligned, NULL when there is none. `advice` is of madvise.
Memory map_memory(size_t bytes, int advice) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return Memory(nullptr, {bytes});
    }
    madvise(memory, bytes, advice);
    return Memory(static_cast<float *>(memory), {bytes});
}

void consume(float value) {
    static std::atomic<float> sink;
    sink.store(value, std::memory_order_relaxed);
}

// Runs item(0..threads-1) at once, each on a core of its own: seconds from the first start to the last end.
double run_pinned(int threads, const std::function<void(int)> &item) {
    const std::vector<int> cpus = usable_cpus();
    std::atomic<int> waiting{threads};
    std::vector<double> starts(static_cast<size_t>(threads)), ends(starts.size());
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; i++) {
        workers.emplace_back([&, i] {
            const auto at = static_cast<size_t>(i);
            pin_this_thread(cpus[at % cpus.size()]);
            waiting--;
            while (waiting.load() > 0) {
                std::this_thread::yield();
            }
            starts[at] = wall_seconds();
            item(i);
            ends[at] = wall_seconds();
        });
    }
    for (std::thread &worker : workers) {
        worker.join();
    }
    return *std::max_element(ends.begin(), ends.end()) - *std::min_element(starts.begin(), starts.end());
}

double best_seconds(int tries, int threads, const std::function<void(int)> &item) {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < tries; i++) {
        best = std::min(best, run_pinned(threads, item));
    }
    return best;
}

const IsaLoops &loops_of(heed_isa isa) {
    return isa == HEED_AVX512 ? isa_loops<HEED_AVX512>()
                              : (isa == HEED_AVX2 ? isa_loops<HEED_AVX2>() : isa_loops<HEED_X86_64>());
}

// One buffer per thread, touched by the thread that will read it. Empty when memory is short.
std::vector<Memory> thread_buffers(int threads, size_t bytes, int advice) {
    std::vector<Memory> buffers;
    for (int i = 0; i < threads; i++) {
        buffers.push_back(map_memory(bytes, advice));
        if (!buffers.back()) {
            return {};
        }
    }
    run_pinned(threads, [&](int i) {
        float *data = buffers[static_cast<size_t>(i)].get();
        std::fill(data, data + bytes / sizeof(float), 1.f);
    });
    return buffers;
}

double read_gbps(const ReadLoop &loop, const std::vector<Memory> &buffers, size_t bytes, int repeats, int tries) {
    const int threads = static_cast<int>(buffers.size());
    const double seconds = best_seconds(tries, threads, [&](int i) {
        for (int r = 0; r < repeats; r++) {
            consume(loop.run(buffers[static_cast<size_t>(i)].get(), bytes / sizeof(float)));
        }
    });
    return static_cast<double>(bytes) * repeats * threads / seconds * 1e-9;
}

}  // namespace

const char *isa_name(heed_isa isa) { return isa == HEED_AVX512 ? "avx512" : (isa == HEED_AVX2 ? "avx2" : "x86_64"); }

bool isa_available(heed_isa isa) {
    switch (isa) {
    case HEED_AVX512:
        return __builtin_cpu_supports("avx512f");
    case HEED_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    default:
        return __builtin_cpu_supports("sse4.1");
    }
}

heed_isa best_isa() {
    return isa_available(HEED_AVX512) ? HEED_AVX512 : (isa_available(HEED_AVX2) ? HEED_AVX2 : HEED_X86_64);
}

double fma_peak_gflops(int threads) { return fma_peak_gflops(threads, best_isa()); }

double fma_peak_gflops(int threads, heed_isa isa) {
    if (!isa_available(isa)) {
        return 0;
    }
    const IsaLoops &loops = loops_of(isa);
    // Half a GFLOP: a few milliseconds.
    const long iterations = static_cast<long>(0.5e9 / loops.fma_flops_per_iteration);
    const double seconds = best_seconds(num_tries, threads, [&](int) { consume(loops.fma(iterations)); });
    return loops.fma_flops_per_iteration * static_cast<double>(iterations) * threads / seconds * 1e-9;
}

double exp_rate_gelems(int threads) { return exp_rate_gelems(threads, best_isa()); }

double exp_rate_gelems(int threads, heed_isa isa) {
    if (!isa_available(isa)) {
        return 0;
    }
    constexpr size_t count = 2048;  // two arrays of 8 KiB
    constexpr int repeats = 8192;
    const IsaLoops &loops = loops_of(isa);
    const double seconds = best_seconds(num_tries, threads, [&](int) {
        alignas(64) float logits[count], probs[count];
        for (size_t i = 0; i < count; i++) {
            logits[i] = static_cast<float>(i % 97) / 8.f;
        }
        for (int r = 0; r < repeats; r++) {
            consume(loops.exp2_sum(logits, count, 1.44269504f, 20.f, probs));
        }
    });
    return static_cast<double>(count) * repeats * threads / seconds * 1e-9;
}

double l2_read_gbps(int threads) {
    const size_t bytes = static_cast<size_t>(std::max<int64_t>(cache_bytes(2) / 2, 128 << 10));
    const std::vector<Memory> buffers = thread_buffers(threads, bytes, MADV_HUGEPAGE);
    double best = 0;
    for (const ReadLoop &loop : loops_of(best_isa()).reads) {
        best = buffers.empty() ? 0 : std::max(best, read_gbps(loop, buffers, bytes, 1000, num_tries / 2));
    }
    return best;
}

std::vector<DramRead> dram_read_gbps(int threads) {
    const size_t bytes = static_cast<size_t>(std::max<int64_t>(4 * cache_bytes(3), 256 << 20));
    std::vector<DramRead> results;
    for (const int advice : {MADV_NOHUGEPAGE, MADV_HUGEPAGE}) {
        const std::vector<Memory> buffers = thread_buffers(threads, bytes, advice);
        if (buffers.empty()) {
            continue;
        }
        for (const ReadLoop &loop : loops_of(best_isa()).reads) {
            results.push_back({loop.name, advice == MADV_HUGEPAGE ? "huge (madvise)" : "4K",
                               read_gbps(loop, buffers, bytes, 1, num_dram_tries)});
        }
    }
    return results;
}

Ceilings measure_ceilings(int threads) {
    Ceilings ceilings;
    ceilings.threads = threads;
    for (const heed_isa isa : all_isas) {
        ceilings.fma_gflops[static_cast<size_t>(isa)] = fma_peak_gflops(threads, isa);
        ceilings.exp_gelems[static_cast<size_t>(isa)] = exp_rate_gelems(threads, isa);
    }
    ceilings.l2_gbps = l2_read_gbps(threads);
    ceilings.dram = dram_read_gbps(threads);
    for (const DramRead &read : ceilings.dram) {
        ceilings.dram_gbps = std::max(ceilings.dram_gbps, read.gbps);
    }
    return ceilings;
}

void keep_larger(Ceilings &ceilings, const Ceilings &other) {
    for (size_t i = 0; i < all_isas.size(); i++) {
        ceilings.fma_gflops[i] = std::max(ceilings.fma_gflops[i], other.fma_gflops[i]);
        ceilings.exp_gelems[i] = std::max(ceilings.exp_gelems[i], other.exp_gelems[i]);
    }
    ceilings.l2_gbps = std::max(ceilings.l2_gbps, other.l2_gbps);
    ceilings.dram_gbps = std::max(ceilings.dram_gbps, other.dram_gbps);
    for (size_t i = 0; i < std::min(ceilings.dram.size(), other.dram.size()); i++) {
        ceilings.dram[i].gbps = std::max(ceilings.dram[i].gbps, other.dram[i].gbps);
    }
}

}  // namespace heed_bench
