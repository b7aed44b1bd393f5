// Which kernels a CPU may run: adversarial case 61, a CPU or a system that lacks a feature, one after the other.
#include <gtest/gtest.h>

#include <cstring>

#include "runtime/cpu.h"
#include "runtime/kernel_registry.h"

namespace {

using heed::Capability;
using heed::CpuWords;
using heed::Isa;
using heed::KernelTarget;

// A bit of the words, as the manuals number it, and the first level that it is needed for.
struct Needed {
    uint32_t CpuWords::*word;
    int bit;
    Isa level;
};

constexpr Needed needed[] = {
    {&CpuWords::leaf1_ecx, 19, Isa::x86_64},       // SSE4.1
    {&CpuWords::leaf1_ecx, 12, Isa::avx2},         // FMA
    {&CpuWords::leaf1_ecx, 28, Isa::avx2},         // AVX
    {&CpuWords::leaf1_ecx, 29, Isa::avx2},         // F16C
    {&CpuWords::leaf7_ebx, 5, Isa::avx2},          // AVX2
    {&CpuWords::xcr0, 1, Isa::avx2},               // XMM
    {&CpuWords::xcr0, 2, Isa::avx2},               // YMM
    {&CpuWords::leaf7_ebx, 16, Isa::avx512},       // AVX-512 F
    {&CpuWords::leaf7_ebx, 17, Isa::avx512},       // DQ
    {&CpuWords::leaf7_ebx, 28, Isa::avx512},       // CD
    {&CpuWords::leaf7_ebx, 30, Isa::avx512},       // BW
    {&CpuWords::leaf7_ebx, 31, Isa::avx512},       // VL
    {&CpuWords::xcr0, 5, Isa::avx512},             // mask registers
    {&CpuWords::xcr0, 6, Isa::avx512},             // upper halves of ZMM0..15
    {&CpuWords::xcr0, 7, Isa::avx512},             // ZMM16..31
    {&CpuWords::leaf7_ebx, 21, Isa::avx512bf16},   // IFMA
    {&CpuWords::leaf7_ecx, 1, Isa::avx512bf16},    // VBMI
    {&CpuWords::leaf7_ecx, 6, Isa::avx512bf16},    // VBMI2
    {&CpuWords::leaf7_ecx, 11, Isa::avx512bf16},   // VNNI
    {&CpuWords::leaf7_ecx, 12, Isa::avx512bf16},   // BITALG
    {&CpuWords::leaf7_1_eax, 5, Isa::avx512bf16},  // AVX-512 BF16
    {&CpuWords::leaf7_ecx, 8, Isa::amx},           // GFNI
    {&CpuWords::leaf7_edx, 22, Isa::amx},          // AMX-BF16
    {&CpuWords::leaf7_edx, 23, Isa::amx},          // AVX-512 FP16
    {&CpuWords::leaf7_edx, 24, Isa::amx},          // AMX-TILE
    {&CpuWords::leaf7_1_eax, 4, Isa::amx},         // AVX-VNNI
    {&CpuWords::xcr0, 17, Isa::amx},               // TILECFG
    {&CpuWords::xcr0, 18, Isa::amx},               // TILEDATA
};

bool granted() { return true; }
bool refused() { return false; }
bool must_not_ask() {
    ADD_FAILURE() << "asked for tiles on a CPU without them";
    return true;
}

CpuWords words_with_all() {
    CpuWords words = {};
    for (const Needed &n : needed) words.*n.word |= 1u << n.bit;
    return words;
}

uint32_t levels_below(Isa isa) { return (1u << static_cast<int>(isa)) - 1; }

TEST(Cpu, Case61_EachMissingFeatureLeavesTheLevelsBelow) {
    for (const Needed &n : needed) {
        CpuWords words = words_with_all();
        words.*n.word &= ~(1u << n.bit);
        EXPECT_EQ(heed::isas_of(words, must_not_ask), levels_below(n.level)) << "bit " << n.bit;
    }
}

TEST(Cpu, TheSystemGrantsTiles) {
    EXPECT_EQ(heed::isas_of(words_with_all(), granted), levels_below(Isa::amx) | KernelTarget(Isa::amx).bit());
    EXPECT_EQ(heed::isas_of(words_with_all(), refused), levels_below(Isa::amx));
    EXPECT_EQ(heed::isas_of({}, must_not_ask), 0u);
}

TEST(Cpu, EveryLevelHasItsNameAndSaysWhatItNeeds) {
    const struct {
        KernelTarget target;
        const char *name, *needs;
    } levels[] = {{Isa::x86_64, "x86_64", "SSE4.1"},
                  {Isa::avx2, "avx2", "AVX2, FMA or F16C"},
                  {Isa::avx512, "avx512", "AVX-512 F, CD, BW, DQ or VL"},
                  {Isa::avx512bf16, "avx512bf16", "BF16"},
                  {Isa::amx, "amx", "AMX_TILE"},
                  {Capability::sm75, "sm75", "compute capability 7.5"},
                  {Capability::sm80, "sm80", "compute capability 8.0"},
                  {static_cast<Isa>(99), "?", "unknown"}};
    for (const auto &level : levels) {
        EXPECT_STREQ(heed::target_name(level.target), level.name);
        EXPECT_NE(std::strstr(heed::target_reason(level.target), level.needs), nullptr) << level.name;
    }
}

TEST(Cpu, LevelsAreNested) {
    EXPECT_TRUE(!heed::cpu_supports(heed::Isa::avx2) || heed::cpu_supports(heed::Isa::x86_64));
    EXPECT_TRUE(!heed::cpu_supports(heed::Isa::avx512) || heed::cpu_supports(heed::Isa::avx2));
    EXPECT_TRUE(!__builtin_cpu_supports("avx2") == !heed::cpu_supports(heed::Isa::avx2));
    EXPECT_TRUE(!__builtin_cpu_supports("avx512bw") == !heed::cpu_supports(heed::Isa::avx512));
    EXPECT_GE(heed::cpu_count(), 1);
}

}  // namespace
