// The kernels of this program's kernel library.
#pragma once

#include <string>

#include "runtime/kernel.h"

namespace heed {

// Whether prefill kernels of floats that know no pages read a problem's keys and values in copies of heads, which each
// thread makes once for all its tasks: of pages, or of 16-bit numbers as floats. `possible`: others take less time.
enum class CopiesOfHeads : uint8_t { no, possible, pay };

// What a problem asks of a kernel.
struct KernelRequest {
    heed_device device;
    heed_dtype dtype, kv_dtype;
    int32_t head_dim, head_dim_v;
    uint32_t features;
    heed_kv_storage kv_storage;
    int32_t q_len, group_size;
    bool any_q_len;  // the choice must not follow q_len: other sequences' lengths are part of it
    const char *score_mod = "";
    int64_t keys = 0, sequences = 0;  // of all heads, at most
    bool slow_bf16_dots = false;      // of the machine
    bool prefills_in_floats = false;  // the machine has no faster arithmetic for it; keys are not int8
    bool prefills_in_dots = false;    // it has dot products of bf16, and no matrix tiles
    int32_t max_kv_len = 0, num_kv_heads = 1;
    bool whole_keys = false;  // the heads of a key are neighbours in memory, many bytes, and keys leave the caches
    bool far_keys = false;    // those of a head are a page of memory apart, or more
    CopiesOfHeads copies = CopiesOfHeads::no;
};

// Why a machine that lacks this target cannot run its kernels.
const char *target_reason(KernelTarget target);

// Whether copies of heads may be what the kernel reads.
bool may_read_copies(const Kernel &kernel);

// Whether it would read them here, for it knows neither the storage nor the type of the keys.
bool needs_copies(const Kernel &kernel, heed_kv_storage storage, heed_dtype kv_dtype);

// Whether the kernel can serve the request on a machine with these targets.
bool serves(const Kernel &kernel, const KernelRequest &request, uint32_t targets);

// Why the kernel cannot serve the request on a machine with these targets; empty when it can.
std::string why_not(const Kernel &kernel, const KernelRequest &request, uint32_t targets);

// Bytes of the copy of kv_block keys and values of a head that the kernel makes first, for these head dims.
int64_t packed_block_bytes(const Kernel &kernel, int64_t head_dim, int64_t head_dim_v);

// Whether the kernel packs values, and keys with them: else it reads these in place.
inline bool packs_values(const Kernel &kernel) { return kernel.packed_bytes > 0; }
bool packs_keys(const Kernel &kernel);

// The name of the first kernel that was generated for another argument list than this runtime passes, or NULL.
const char *foreign_kernel(const KernelTable &table);

// UNSUPPORTED, with its name, when this program's kernel library has such a kernel.
heed_status check_kernel_library();

// Names of feature bits, each after a space.
std::string feature_names(uint32_t bits);

}  // namespace heed
