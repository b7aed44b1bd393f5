#include "runtime/cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "heed/fields.h"

namespace heed {
namespace {

// Bits of CPUID leaf 1 (ECX), leaf 7 (EBX, ECX and EDX), its subleaf 1 (EAX), and of XCR0.
constexpr uint32_t leaf1_fma = 1u << 12, leaf1_sse41 = 1u << 19, leaf1_osxsave = 1u << 27, leaf1_avx = 1u << 28,
                   leaf1_f16c = 1u << 29;
constexpr uint32_t leaf7_avx2 = 1u << 5, leaf7_avx512f = 1u << 16, leaf7_avx512dq = 1u << 17, leaf7_avx512cd = 1u << 28,
                   leaf7_avx512bw = 1u << 30, leaf7_avx512vl = 1u << 31, leaf7_avx512ifma = 1u << 21;
constexpr uint32_t leaf7c_avx512vbmi = 1u << 1, leaf7c_avx512vbmi2 = 1u << 6, leaf7c_avx512vnni = 1u << 11,
                   leaf7c_avx512bitalg = 1u << 12;
constexpr uint32_t leaf7c_gfni = 1u << 8;
constexpr uint32_t leaf7d_amx_bf16 = 1u << 22, leaf7d_avx512fp16 = 1u << 23, leaf7d_amx_tile = 1u << 24;
constexpr uint32_t leaf7_1_avx_vnni = 1u << 4, leaf7_1_avx512bf16 = 1u << 5;
constexpr uint32_t xcr0_ymm = 0x06, xcr0_zmm = 0xe6, xcr0_tiles = 0x60000;

uint32_t read_xcr0() {
    uint32_t low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

bool has_all(uint32_t value, uint32_t bits) { return (value & bits) == bits; }

// Linux saves the tiles of a process from its first such request on.
bool may_use_tiles() {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

CpuWords read_words() {
    CpuWords words = {};
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) words.leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        words.leaf7_ebx = ebx;
        words.leaf7_ecx = ecx;
        words.leaf7_edx = edx;
        // eax: the last subleaf.
        if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) words.leaf7_1_eax = eax;
    }
    if (has_all(words.leaf1_ecx, leaf1_osxsave)) words.xcr0 = read_xcr0();
    return words;
}

constexpr uint32_t known = 1;

// `known`, and bit 1 + isa of each ISA that may be used.
uint32_t detect() { return known | isas_of(read_words(), may_use_tiles) << 1; }

// A plain atomic and no guarded static: a child forked during initialisation must not wait for a lost thread.
std::atomic<uint32_t> detected{0};

}  // namespace

uint32_t isas_of(const CpuWords &words, bool (*may_use_tiles)()) {
    uint32_t isas = 0;
    const auto add = [&](Isa isa) { isas |= 1u << static_cast<int>(isa); };
    if (!has_all(words.leaf1_ecx, leaf1_sse41)) return isas;
    add(Isa::x86_64);
    if (!has_all(words.leaf1_ecx, leaf1_avx | leaf1_fma | leaf1_f16c) || !has_all(words.leaf7_ebx, leaf7_avx2) ||
        !has_all(words.xcr0, xcr0_ymm)) {
        return isas;
    }
    add(Isa::avx2);
    if (!has_all(words.leaf7_ebx, leaf7_avx512f | leaf7_avx512dq | leaf7_avx512cd | leaf7_avx512bw | leaf7_avx512vl) ||
        !has_all(words.xcr0, xcr0_zmm)) {
        return isas;
    }
    add(Isa::avx512);
    if (!has_all(words.leaf7_ebx, leaf7_avx512ifma) || !has_all(words.leaf7_1_eax, leaf7_1_avx512bf16) ||
        !has_all(words.leaf7_ecx, leaf7c_avx512vbmi | leaf7c_avx512vbmi2 | leaf7c_avx512vnni | leaf7c_avx512bitalg)) {
        return isas;
    }
    add(Isa::avx512bf16);
    if (has_all(words.leaf7_ecx, leaf7c_gfni) && has_all(words.leaf7_1_eax, leaf7_1_avx_vnni) &&
        has_all(words.leaf7_edx, leaf7d_amx_tile | leaf7d_amx_bf16 | leaf7d_avx512fp16) &&
        has_all(words.xcr0, xcr0_tiles) && may_use_tiles()) {
        add(Isa::amx);
    }
    return isas;
}

bool cpu_supports(Isa isa) {
    uint32_t bits = detected.load(std::memory_order_relaxed);
    if (bits == 0) {
        bits = detect();
        detected.store(bits, std::memory_order_relaxed);
    }
    return (bits & (2u << static_cast<int>(isa))) != 0;
}

bool is_intel() {
    // Asked once: in a virtual machine CPUID takes some 20 us.
    static const bool found = [] {
        uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
        return __get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0 && ebx == signature_INTEL_ebx;
    }();
    return found;
}

bool has_slow_bf16_dots() { return is_intel(); }

void assume_cpu_supports(Isa isa) {
    cpu_supports(isa);
    detected.fetch_or(2u << static_cast<int>(isa));
}

const char *target_name(KernelTarget target) { return heed_isa_word(target.value); }

int32_t cpu_count() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

}  // namespace heed
