// The table of a kernel library: one Kernel for each, all called alike, in the argument order of generators/contract.
// What they take is there: attention_arguments.h, and for operations operations.h, cuda_arguments.h and
// cuda_layer_arguments.h.
//
// A kernel whose storage is `contiguous` serves strided storage, contiguous and varlen; one whose storage is `paged`
// serves all. Prefill kernels whose keys are floats also read copies of heads (Backend::copies_of_heads): of pages, and
// of 16-bit keys where queries have 16 bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "generators/contract/fields.h"
#include "generators/contract/operations.h"
#include "heed/heed.h"

namespace heed {

enum class Phase : int32_t { prefill = HEED_PREFILL, decode = HEED_DECODE };

// Instruction sets of CPUs and compute capabilities of CUDA, in order of preference: a later one is faster where the
// machine has it. x86_64 means SSE4.1.
enum class Isa : int32_t {
    x86_64 = HEED_X86_64,
    avx2 = HEED_AVX2,
    avx512 = HEED_AVX512,
    avx512bf16 = HEED_AVX512_BF16,
    amx = HEED_AMX
};
enum class Capability : int32_t { sm75 = HEED_SM75, sm80 = HEED_SM80, sm90 = HEED_SM90 };

// What a kernel needs: one of either. The better one of a device is greater.
struct KernelTarget {
    heed_isa value = HEED_X86_64;

    constexpr KernelTarget() = default;
    constexpr KernelTarget(Isa isa) : value(static_cast<heed_isa>(isa)) {}
    constexpr KernelTarget(Capability capability) : value(static_cast<heed_isa>(capability)) {}

    constexpr heed_device device() const { return value >= HEED_SM75 && value <= HEED_SM90 ? HEED_CUDA : HEED_CPU; }
    constexpr Isa isa() const { return static_cast<Isa>(value); }                       // of a CPU
    constexpr Capability capability() const { return static_cast<Capability>(value); }  // of CUDA
    constexpr uint32_t bit() const { return 1u << static_cast<int>(value); }            // in a set of targets

    friend constexpr bool operator==(KernelTarget a, KernelTarget b) { return a.value == b.value; }
    friend constexpr bool operator!=(KernelTarget a, KernelTarget b) { return a.value != b.value; }
    friend constexpr bool operator<(KernelTarget a, KernelTarget b) { return a.value < b.value; }
    friend constexpr bool operator>(KernelTarget a, KernelTarget b) { return a.value > b.value; }
    friend constexpr bool operator<=(KernelTarget a, KernelTarget b) { return a.value <= b.value; }
};

// The plain tokens of generated table lines: HEED_KERNEL(name, prefill, f32, f32, 64, 64, 0, contiguous, avx2, ...).
namespace token {
constexpr heed_dtype f32 = HEED_F32, f16 = HEED_F16, bf16 = HEED_BF16, i8 = HEED_I8, u8 = HEED_U8, i32 = HEED_I32;
constexpr KernelTarget x86_64 = Isa::x86_64, avx2 = Isa::avx2, avx512 = Isa::avx512, avx512bf16 = Isa::avx512bf16,
                       amx = Isa::amx, sm75 = Capability::sm75, sm80 = Capability::sm80, sm90 = Capability::sm90;
constexpr heed_kv_storage contiguous = HEED_KV_CONTIGUOUS, varlen = HEED_KV_VARLEN, paged = HEED_KV_PAGED;
}  // namespace token

static_assert(uint32_t{feature_bias} == HEED_FEATURE_BIAS && uint32_t{feature_dropout} == HEED_FEATURE_DROPOUT);
static_assert(static_cast<int>(raw_scores) == HEED_PROBS_SCORES &&
              static_cast<int>(soft_capped_scores) == HEED_PROBS_SOFTCAP &&
              static_cast<int>(masked_scores) == HEED_PROBS_MASKED &&
              static_cast<int>(probabilities) == HEED_PROBS_SOFTMAX);

// Places of attention's arguments in args, without score buffers.
#define HEED_PLACE(name, ...) arg_##name,
enum Argument { arg_user_context, HEED_ATTENTION(HEED_PLACE, HEED_PLACE, HEED_PLACE) num_arguments };
#undef HEED_PLACE

constexpr int max_score_buffers = HEED_MAX_SCORE_BUFFERS;

struct Kernel {
    const char *name;
    Phase phase;
    heed_dtype dtype, kv_dtype;
    int32_t head_dim, head_dim_v;  // 0 = any, up to 640, on CUDA up to max_cuda_head_dim
    uint32_t features;             // Feature bits; a kernel with features serves problems without them too
    heed_kv_storage kv_storage;    // contiguous or paged
    KernelTarget target;
    int32_t row_block, kv_block;
    int64_t
        scratch_per_thread;  // halide_malloc bytes of one task at most; -1: unbounded, the heap serves (test kernels)
    const char *schedule;
    int (*call)(void **args);
    int64_t code_bytes = 0;
    const char *score_mod = "";      // name of the user's score function, which each logit of the kernel passes
    const char *score_buffers = "";  // of the buffers that it reads, one letter each: f (f32) or i (int32)
    uint64_t arguments_hash = attention_arguments_hash;  // of the list that the kernel was generated for
    // The bytes of the copy of kv_block values, and keys, of a head that the kernel makes first; 0 where it makes none.
    // In a kernel of any head dim they are those of one element of the rows.
    int64_t packed_bytes = 0;
    int32_t task_blocks = 1;  // decode: the most blocks of rows that a task has
    // The first bytes that a task allocates and keeps between parts of its keys; 0: it takes no parts.
    int64_t kept_bytes = 0;
    int32_t loops_before = 0;    // where it packs, parallel loops of the kernel before the one over tasks
    bool asks_for_rows = false;  // prefill: a task asks for its rows of out and the next task's of q
};

// Whether the kernel sweeps over mask and bias, once for all heads that share them.
inline bool sweeps(const Kernel &kernel) {
    return kernel.phase == Phase::prefill && (kernel.features & (feature_mask | feature_bias)) != 0 &&
           kernel.target.device() == HEED_CPU;
}

inline bool decodes_on_cpu(const Kernel &kernel, const char *schedule) {
    return kernel.phase == Phase::decode && kernel.target.device() == HEED_CPU &&
           std::strcmp(kernel.schedule, schedule) == 0;
}

// Whether a decode kernel of CPUs has query rows as lanes, for groups of many heads.
inline bool is_for_large_groups(const Kernel &kernel) { return decodes_on_cpu(kernel, "wide"); }

// Whether a decode kernel of CPUs is for keys of many heads that leave the caches.
inline bool is_for_whole_keys(const Kernel &kernel) { return decodes_on_cpu(kernel, "whole"); }

// The hash of the list that this runtime passes to an operation.
constexpr uint64_t expected_hash(Op op, KernelTarget target, heed_dtype dtype) {
    return op_arguments_hash(op, target.device() == HEED_CUDA, dtype == HEED_BF16);
}

struct OpKernel {
    const char *name;
    Op op;
    heed_dtype dtype, kv_dtype;
    KernelTarget target;
    int (*call)(void **args);
    int32_t rows = 0, columns = 0;  // linear and linear_rows: the register tile; attention_backward*: the tile
    uint64_t arguments_hash = expected_hash(op, target, dtype);  // of the list that the kernel was generated for
    const char *score_mod = "", *score_buffers = "";             // attention_backward: as in Kernel
};

struct KernelTable {
    const Kernel *kernels;
    int32_t count;
    const OpKernel *ops = nullptr;
    int32_t num_ops = 0;
};

}  // namespace heed

// Defined by the one kernel library of a program, in its generated kernel_table.cpp.
extern "C" const heed::KernelTable heed_kernel_table;
