// The kernels of the kernel table that the tested device can run, and which of them ran.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/reference/kernel_facts.h"
#include "tests/support/call.h"

namespace heed_test {

struct TableKernel {
    std::string name;
    heed_kernel_info info;

    bool any_head_dim() const { return info.head_dim == 0; }
    bool cuda() const { return is_cuda(info.isa); }
    bool decode() const { return info.phase == HEED_DECODE; }
    bool has(uint32_t features) const { return (info.features & features) == features; }
    // The kernel's own head dims, or the given ones for a general kernel.
    Shape shape(int32_t head_dim = 57, int32_t head_dim_v = 40) const;

    // The largest that kernels of any head dim serve.
    int32_t most_head_dim() const { return cuda() ? 256 : 640; }

    bool int8_kv() const { return info.kv_dtype == HEED_I8; }
    bool widens_keys() const { return info.kv_dtype != info.dtype && !int8_kv(); }
    bool paged() const { return info.kv_storage == HEED_KV_PAGED; }
    // A kernel of f32 (CUDA: f16) and contiguous keys: tests run their whole lists on these, and parts of them on the
    // others. Those of head_dim 64 or any, unless HEED_TEST_ALL_KERNELS=1.
    bool leads() const;
    // What the kernel serves: contiguous and varlen keys, paged kernels paged keys too; any legal storage of queries.
    bool serves(heed_kv_storage storage) const { return paged() || storage != HEED_KV_PAGED; }

    // make_attention in the kernel's types.
    Attention attention(const Shape &shape, Data data = Data::normal, uint64_t seed = 1) const;
    // Forces the kernel, with dense queries and the keys it is named for.
    CallOptions options() const;
};

// All kernels of the tested device, and those that run here, sorted so that kernels that solve the same problems are
// together.
std::vector<TableKernel> all_kernels();
std::vector<TableKernel> supported_kernels();
std::vector<TableKernel> kernels_with(uint32_t features);  // supported, with all of these features
std::vector<TableKernel> kernels_for(const Shape &shape,
                                     uint32_t features = 0);  // supported, and serving these head dims

// The kernels of suites about what only the CPU has, threads, say, or gigabytes for one tensor: none when CUDA is
// tested.
std::vector<TableKernel> on_cpu(std::vector<TableKernel> kernels);

template <class Predicate>
std::vector<TableKernel> only(std::vector<TableKernel> kernels, Predicate predicate) {
    kernels.erase(
        std::remove_if(kernels.begin(), kernels.end(), [&](const TableKernel &kernel) { return !predicate(kernel); }),
        kernels.end());
    return kernels;
}

const char *isa_name(heed_isa isa);
// Those of the tested device that the build was asked to make kernels for.
std::vector<heed_isa> isas_of_device();

// By CPUID, or the CUDA driver's word, without asking the library.
bool machine_has(heed_isa isa);

// Notes that a kernel ran; the ISAs of all that did.
void note_run(const std::string &kernel);
bool any_kernel_ran(heed_isa isa);

}  // namespace heed_test
