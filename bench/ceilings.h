// What this machine can do at most, measured: arithmetic, exponentials, read bandwidth. Every number is the best of
// several tries with `threads` threads, each pinned to a core of its own; shares of a peak are shares of these.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "heed/heed.h"

namespace heed_bench {

constexpr std::array<heed_isa, 3> all_isas = {HEED_X86_64, HEED_AVX2, HEED_AVX512};

const char *isa_name(heed_isa isa);

// By CPUID and the state that the operating system saves.
bool isa_available(heed_isa isa);
heed_isa best_isa();

// f32, one FMA counts as 2 FLOPs. 0 for an ISA that is not available.
double fma_peak_gflops(int threads);
double fma_peak_gflops(int threads, heed_isa isa);

// Softmax terms 2^(x * scale - max) per ns, summed, from and to L1.
double exp_rate_gelems(int threads);
double exp_rate_gelems(int threads, heed_isa isa);

// Half of the L2 per thread.
double l2_read_gbps(int threads);

// At least 256 MiB and 4 L3 sizes per thread, by several loops, each on small and on huge pages.
struct DramRead {
    std::string loop, pages;
    double gbps;
};
std::vector<DramRead> dram_read_gbps(int threads);

struct Ceilings {
    int threads = 0;
    std::array<double, all_isas.size()> fma_gflops{}, exp_gelems{};  // by heed_isa
    double l2_gbps = 0;
    double dram_gbps = 0;  // the best of dram
    std::vector<DramRead> dram;
};

Ceilings measure_ceilings(int threads);

// Other processes can only make a ceiling look lower: of two measurements the larger counts.
void keep_larger(Ceilings &ceilings, const Ceilings &other);

}  // namespace heed_bench
