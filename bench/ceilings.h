// What this machine can do at most, measured: arithmetic, exponentials, read bandwidth. Every number is the best of
// several tries with `threads` threads, each pinned to a core of its own; shares of a peak are shares of these.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "heed/heed.h"

namespace heed_bench {

// Arithmetic that kernels are made of, each with a peak of its own: f32 multiply-adds of 128 (no FMA), 256 and 512
// bits, pairs of bf16 products summed in f32 (vdpbf16ps), tiles of them (AMX).
enum class Unit { fma_x86_64, fma_avx2, fma_avx512, dot_bf16, tile_bf16 };
constexpr std::array<Unit, 5> all_units = {Unit::fma_x86_64, Unit::fma_avx2, Unit::fma_avx512, Unit::dot_bf16,
                                           Unit::tile_bf16};

const char *unit_name(Unit unit);

// By CPUID and the state that the operating system saves; for tiles it is asked for.
bool unit_available(Unit unit);

// What a kernel computes with, by its ISA (as its name has it: "avx512") and element type, and so the ceiling that it
// is measured by. An ISA that is not told apart here has the best unit of the type.
Unit unit_of(const std::string &isa, heed_dtype dtype);

// The widest arithmetic that this machine has for an element type, whether kernels use it or not.
Unit best_unit(heed_dtype dtype);

// A multiply-add counts as 2 FLOPs. 0 where there is no such unit.
double peak_gflops(Unit unit, int threads);
double fma_peak_gflops(int threads);  // of the widest FMA

// Softmax terms 2^(x * scale - max) per ns, summed, from and to L1, in f32 vectors of the width that goes with the
// unit.
double exp_rate_gelems(Unit unit, int threads);

// Half of the cache for all threads together.
double l2_read_gbps(int threads);  // each thread has an L2
double l3_read_gbps(int threads);  // they share the L3; 0 without one

// At least 256 MiB and 4 L3 sizes per thread, by several loops, each on small and on huge pages.
struct DramRead {
    std::string loop, pages;
    double gbps;
};
std::vector<DramRead> dram_read_gbps(int threads);

// Measures it in turns with the calls of a case: bandwidth of a shared machine swings by the minute. With small pages.
class DramReader {
public:
    explicit DramReader(int threads);
    ~DramReader();

    // GB/s of the next `bytes`, which all threads share. The first call makes the buffers; std::bad_alloc.
    double read_gbps(double bytes);

private:
    struct Buffers;
    const int threads_;
    std::unique_ptr<Buffers> buffers_;
    size_t next_ = 0;  // float of each buffer
};

struct Ceilings {
    int threads = 0;
    std::array<double, all_units.size()> gflops{}, exp_gelems{};  // by Unit
    double l2_gbps = 0, l3_gbps = 0;
    double dram_gbps = 0;  // the best of dram
    std::vector<DramRead> dram;

    double peak(Unit unit) const { return gflops[static_cast<size_t>(unit)]; }
    double exp_rate(Unit unit) const { return exp_gelems[static_cast<size_t>(unit)]; }

    // The fastest for an element type: pairs of bf16 take half the rate of FMA on Intel's CPUs without AMX.
    Unit fastest(heed_dtype dtype) const;
};

Ceilings measure_ceilings(int threads);

// Other processes can only make a ceiling look lower: of two measurements the larger counts.
void keep_larger(Ceilings &ceilings, const Ceilings &other);

}  // namespace heed_bench
