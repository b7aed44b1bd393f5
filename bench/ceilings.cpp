#include "bench/ceilings.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <thread>

#include "bench/ceilings_loops.h"
#include "bench/machine.h"

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

// The loops of the vectors that go with a unit.
const IsaLoops &loops_of(Unit unit) {
    switch (unit) {
    case Unit::fma_x86_64:
        return isa_loops<HEED_X86_64>();
    case Unit::fma_avx2:
        return isa_loops<HEED_AVX2>();
    default:
        return isa_loops<HEED_AVX512>();
    }
}

struct Arithmetic {
    float (*run)(long iterations);
    double flops_per_iteration;
};

Arithmetic arithmetic_of(Unit unit) {
    switch (unit) {
    case Unit::dot_bf16:
        return {dot_bf16, dot_bf16_flops_per_iteration};
    case Unit::tile_bf16:
        return {tile_bf16, tile_bf16_flops_per_iteration};
    default:
        return {loops_of(unit).fma, loops_of(unit).fma_flops_per_iteration};
    }
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

size_t dram_buffer_bytes() { return static_cast<size_t>(std::max<int64_t>(4 * cache_bytes(3), 256 << 20)); }

// The best loop on buffers of so many bytes per thread.
double cache_read_gbps(int threads, int64_t cache_share) {
    const size_t bytes = static_cast<size_t>(cache_share) / 4096 * 4096;
    if (bytes == 0) {
        return 0;
    }
    const std::vector<Memory> buffers = thread_buffers(threads, bytes, MADV_HUGEPAGE);
    const int repeats = std::max(1, static_cast<int>((size_t{512} << 20) / bytes));
    double best = 0;
    for (const ReadLoop &loop : loops_of(best_unit(HEED_F32)).reads) {
        best = buffers.empty() ? 0 : std::max(best, read_gbps(loop, buffers, bytes, repeats, num_tries / 2));
    }
    return best;
}

bool computes(Unit unit, heed_dtype dtype) { return dtype == HEED_BF16 || unit <= Unit::fma_avx512; }

}  // namespace

const char *unit_name(Unit unit) {
    constexpr std::array<const char *, all_units.size()> names = {"FMA x86_64", "FMA avx2", "FMA avx512", "vdpbf16ps",
                                                                  "AMX bf16"};
    return names[static_cast<size_t>(unit)];
}

bool unit_available(Unit unit) {
    switch (unit) {
    case Unit::fma_x86_64:
        return __builtin_cpu_supports("sse4.1");
    case Unit::fma_avx2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Unit::fma_avx512:
        return __builtin_cpu_supports("avx512f");
    case Unit::dot_bf16:
        return unit_available(Unit::fma_avx512) && __builtin_cpu_supports("avx512bf16");
    case Unit::tile_bf16:
        return unit_available(Unit::dot_bf16) && request_tiles();
    }
    return false;
}

Unit unit_of(const std::string &isa, heed_dtype dtype) {
    if (isa == "x86_64") {
        return Unit::fma_x86_64;
    }
    if (isa == "avx2") {
        return Unit::fma_avx2;
    }
    if (isa == "avx512") {
        return Unit::fma_avx512;  // bf16 too: it is widened
    }
    if (isa == "avx512bf16") {
        return dtype == HEED_BF16 ? Unit::dot_bf16 : Unit::fma_avx512;
    }
    return best_unit(dtype);
}

Unit best_unit(heed_dtype dtype) {
    Unit best = Unit::fma_x86_64;
    for (const Unit unit : all_units) {
        best = computes(unit, dtype) && unit_available(unit) ? unit : best;
    }
    return best;
}

Unit Ceilings::fastest(heed_dtype dtype) const {
    Unit best = Unit::fma_x86_64;
    for (const Unit unit : all_units) {
        best = computes(unit, dtype) && peak(unit) > peak(best) ? unit : best;
    }
    return best;
}

double peak_gflops(Unit unit, int threads) {
    if (!unit_available(unit)) {
        return 0;
    }
    const Arithmetic arithmetic = arithmetic_of(unit);
    // Half a GFLOP: a few milliseconds; of tiles ten times that.
    const double flops = unit == Unit::tile_bf16 ? 5e9 : 0.5e9;
    const long iterations = static_cast<long>(flops / arithmetic.flops_per_iteration);
    const double seconds = best_seconds(num_tries, threads, [&](int) { consume(arithmetic.run(iterations)); });
    return arithmetic.flops_per_iteration * static_cast<double>(iterations) * threads / seconds * 1e-9;
}

double fma_peak_gflops(int threads) { return peak_gflops(best_unit(HEED_F32), threads); }

double exp_rate_gelems(Unit unit, int threads) {
    if (!unit_available(unit)) {
        return 0;
    }
    constexpr size_t count = 2048;  // two arrays of 8 KiB
    constexpr int repeats = 8192;
    const IsaLoops &loops = loops_of(unit);
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

double l2_read_gbps(int threads) { return cache_read_gbps(threads, std::max<int64_t>(cache_bytes(2) / 2, 128 << 10)); }

double l3_read_gbps(int threads) { return cache_read_gbps(threads, cache_bytes(3) / 2 / threads); }

std::vector<DramRead> dram_read_gbps(int threads) {
    const size_t bytes = dram_buffer_bytes();
    std::vector<DramRead> results;
    for (const int advice : {MADV_NOHUGEPAGE, MADV_HUGEPAGE}) {
        const std::vector<Memory> buffers = thread_buffers(threads, bytes, advice);
        if (buffers.empty()) {
            continue;
        }
        for (const ReadLoop &loop : loops_of(best_unit(HEED_F32)).reads) {
            results.push_back({loop.name, advice == MADV_HUGEPAGE ? "huge (madvise)" : "4K",
                               read_gbps(loop, buffers, bytes, 1, num_dram_tries)});
        }
    }
    return results;
}

struct DramReader::Buffers {
    std::vector<Memory> of_thread;
};

DramReader::DramReader(int threads) : threads_(threads) {}

DramReader::~DramReader() = default;

double DramReader::read_gbps(double bytes) {
    if (!buffers_) {
        buffers_.reset(new Buffers{thread_buffers(threads_, dram_buffer_bytes(), MADV_NOHUGEPAGE)});
    }
    if (buffers_->of_thread.empty()) {
        throw std::bad_alloc();
    }
    constexpr size_t multiple = 1024;  // floats, of ReadLoop
    const size_t threads = buffers_->of_thread.size(), all = dram_buffer_bytes() / sizeof(float) / multiple * multiple;
    const size_t share = static_cast<size_t>(bytes) / sizeof(float) / threads / multiple * multiple;
    const size_t count = std::clamp(share, multiple, all);
    const size_t first = next_ + count <= all ? next_ : 0;
    next_ = first + count;
    const ReadLoop &loop = loops_of(best_unit(HEED_F32)).reads[num_read_loops - 1];  // of several streams
    const double seconds = run_pinned(static_cast<int>(threads), [&](int i) {
        consume(loop.run(buffers_->of_thread[static_cast<size_t>(i)].get() + first, count));
    });
    return static_cast<double>(count * sizeof(float) * threads) / seconds * 1e-9;
}

Ceilings measure_ceilings(int threads) {
    Ceilings ceilings;
    ceilings.threads = threads;
    for (const Unit unit : all_units) {
        ceilings.gflops[static_cast<size_t>(unit)] = peak_gflops(unit, threads);
        ceilings.exp_gelems[static_cast<size_t>(unit)] = exp_rate_gelems(unit, threads);
    }
    ceilings.l2_gbps = l2_read_gbps(threads);
    ceilings.l3_gbps = l3_read_gbps(threads);
    ceilings.dram = dram_read_gbps(threads);
    for (const DramRead &read : ceilings.dram) {
        ceilings.dram_gbps = std::max(ceilings.dram_gbps, read.gbps);
    }
    return ceilings;
}

void keep_larger(Ceilings &ceilings, const Ceilings &other) {
    for (size_t i = 0; i < all_units.size(); i++) {
        ceilings.gflops[i] = std::max(ceilings.gflops[i], other.gflops[i]);
        ceilings.exp_gelems[i] = std::max(ceilings.exp_gelems[i], other.exp_gelems[i]);
    }
    ceilings.l2_gbps = std::max(ceilings.l2_gbps, other.l2_gbps);
    ceilings.l3_gbps = std::max(ceilings.l3_gbps, other.l3_gbps);
    ceilings.dram_gbps = std::max(ceilings.dram_gbps, other.dram_gbps);
    for (size_t i = 0; i < std::min(ceilings.dram.size(), other.dram.size()); i++) {
        ceilings.dram[i].gbps = std::max(ceilings.dram[i].gbps, other.dram[i].gbps);
    }
}

}  // namespace heed_bench
