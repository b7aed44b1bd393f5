// AMX in inline assembly: it needs no compiler that knows tiles, and the program starts on machines without them.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "bench/ceilings_loops.h"

namespace heed_bench {

namespace {

constexpr uint32_t leaf1_osxsave = 1u << 27;                              // ECX
constexpr uint32_t leaf7_amx_bf16 = 1u << 22, leaf7_amx_tile = 1u << 24;  // EDX
constexpr uint32_t xcr0_tiles = 3u << 17;                                 // their configuration and data
constexpr long arch_req_xcomp_perm = 0x1023, tile_data = 18;

// Palette 1 with eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace

bool request_tiles() {
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & leaf1_osxsave) == 0) {
        return false;
    }
    constexpr uint32_t wanted = leaf7_amx_bf16 | leaf7_amx_tile;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & wanted) != wanted) {
        return false;
    }
    uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & xcr0_tiles) == xcr0_tiles && syscall(SYS_arch_prctl, arch_req_xcomp_perm, tile_data) == 0;
}

// Two tiles of rows times two of columns into four of sums, as a matrix product has them.
float tile_bf16(long iterations) {
    static const TileConfig config;
    alignas(64) float sums[16 * 16] = {};
    const long stride = 64;
    asm volatile("ldtilecfg %0" ::"m"(config));
    asm volatile("tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n tilezero %%tmm3\n"
                 "tileloadd (%0,%1,1), %%tmm4\n tileloadd (%0,%1,1), %%tmm5\n"
                 "tileloadd (%0,%1,1), %%tmm6\n tileloadd (%0,%1,1), %%tmm7" ::"r"(sums),
                 "r"(stride)
                 : "memory");
    for (long n = 0; n < iterations; n++) {
        asm volatile("tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
                     "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n tdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::);
    }
    asm volatile("tilestored %%tmm0, (%0,%1,1)\n tilerelease" ::"r"(sums), "r"(stride) : "memory");
    return sums[0];
}

}  // namespace heed_bench
