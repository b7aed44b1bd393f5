#include "tests/support/table_kernels.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <tuple>

#include "heed/fields.h"
#include "runtime/cpu.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/device.h"

namespace heed_test {
namespace {

std::mutex ran_mutex;
std::set<std::string> ran;

bool all_are_asked_for() {
    const char *const asked = std::getenv("HEED_TEST_ALL_KERNELS");
    return asked != nullptr && std::strcmp(asked, "1") == 0;
}

// Some kernels represent the others unless HEED_TEST_ALL_KERNELS=1. Of emulated tiles one head dim, any and pairs; on
// CUDA, which is emulated and takes minutes, the kernels of f16 for those of bf16, which differ in their conversions,
// except for one head dim and any on tensor cores, of wide tiles those of one head dim, and the kernels of f32 for f16
// with int8 keys on sm75.
bool leaves_out(const heed_kernel_info &info) {
    if (all_are_asked_for()) return false;
    const bool one_of_many = info.head_dim != 0 && info.head_dim != 64 && info.head_dim == info.head_dim_v;
    if (info.isa == HEED_AMX && amx_is_emulated()) return one_of_many;
    if (!is_cuda(info.isa) || !slow_device()) return false;
    if (std::strcmp(info.schedule, "wide") == 0) return info.dtype == HEED_BF16 || info.head_dim != 128;
    if (info.dtype == HEED_F16) return info.isa == HEED_SM75 && info.kv_dtype == HEED_I8;
    if (info.dtype != HEED_BF16) return false;
    return info.isa == HEED_SM75 || (info.head_dim != 64 && info.head_dim != 0);
}

}  // namespace

bool TableKernel::leads() const {
    if (info.dtype != (cuda() ? HEED_F16 : HEED_F32) || int8_kv() || paged()) return false;
    return any_head_dim() || info.head_dim == 64 || all_are_asked_for();
}

Shape TableKernel::shape(int32_t head_dim, int32_t head_dim_v) const {
    Shape shape;
    shape.head_dim = info.head_dim == 0 ? head_dim : info.head_dim;
    shape.head_dim_v = info.head_dim_v == 0 ? head_dim_v : info.head_dim_v;
    return shape;
}

Attention TableKernel::attention(const Shape &shape, Data data, uint64_t seed) const {
    Attention a = make_attention(shape, data, seed, info.dtype, int8_kv());
    a.rounds_weights = rounds_weights(info);
    return a;
}

CallOptions TableKernel::options() const {
    CallOptions options;
    options.kernel = name;
    options.kv_storage = info.kv_storage;
    return options;
}

std::vector<TableKernel> all_kernels() {
    std::vector<TableKernel> kernels;
    for (int32_t i = 0; i < heed_kernel_count(); i++) {
        heed_kernel_info info = {};
        info.struct_size = sizeof(info);
        if (heed_kernel_get_info(i, &info) != HEED_OK || leaves_out(info)) continue;
        const TableKernel kernel = {info.name, info};
        if (kernel.cuda() == (test_device() == HEED_CUDA)) kernels.push_back(kernel);
    }
    std::stable_sort(kernels.begin(), kernels.end(), [](const TableKernel &x, const TableKernel &y) {
        const auto key = [](const TableKernel &kernel) {
            return std::make_tuple(kernel.info.dtype, kernel.info.kv_dtype, kernel.info.phase, kernel.info.head_dim,
                                   kernel.info.head_dim_v, kernel.info.features);
        };
        return key(x) < key(y);
    });
    return kernels;
}

std::vector<TableKernel> supported_kernels() { return kernels_with(0); }

std::vector<TableKernel> kernels_with(uint32_t features) {
    return only(all_kernels(),
                [&](const TableKernel &kernel) { return kernel.info.supported && kernel.has(features); });
}

std::vector<TableKernel> kernels_for(const Shape &shape, uint32_t features) {
    return only(kernels_with(features), [&](const TableKernel &kernel) {
        const Shape served = kernel.shape(shape.head_dim, shape.head_dim_v);
        return served.head_dim == shape.head_dim && served.head_dim_v == shape.head_dim_v;
    });
}

std::vector<TableKernel> on_cpu(std::vector<TableKernel> kernels) {
    return test_device() == HEED_CPU ? std::move(kernels) : std::vector<TableKernel>();
}

const char *isa_name(heed_isa isa) { return heed_isa_word(isa); }

std::vector<heed_isa> isas_of_device() {
    std::vector<heed_isa> isas;
    std::istringstream table(HEED_TABLE_ISAS);
    for (std::string name; table >> name;) {
        for (int isa = HEED_X86_64; isa <= HEED_SM90; isa++) {
            const auto found = static_cast<heed_isa>(isa);
            if (name == isa_name(found) && is_cuda(found) == (test_device() == HEED_CUDA)) isas.push_back(found);
        }
    }
    return isas;
}

bool machine_has(heed_isa isa) {
    switch (isa) {
    case HEED_X86_64:
        return __builtin_cpu_supports("sse4.1") != 0;
    case HEED_AVX2:
        return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case HEED_AVX512:
        return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
               __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
               __builtin_cpu_supports("avx512vl") != 0;
    case HEED_AVX512_BF16:
        return machine_has(HEED_AVX512) && __builtin_cpu_supports("avx512bf16") != 0;
    case HEED_AMX:
        return heed::cpu_supports(heed::Isa::amx);
    case HEED_SM75:
        return CudaDevice::get().capability() >= 75;
    case HEED_SM80:
        return CudaDevice::get().capability() >= 80;
    case HEED_SM90:
        return CudaDevice::get().capability() == 90;
    }
    return false;
}

void note_run(const std::string &kernel) {
    const std::lock_guard<std::mutex> lock(ran_mutex);
    ran.insert(kernel);
}

bool any_kernel_ran(heed_isa isa) {
    const std::lock_guard<std::mutex> lock(ran_mutex);
    const auto kernels = all_kernels();
    return std::any_of(kernels.begin(), kernels.end(), [&](const TableKernel &kernel) {
        return kernel.info.isa == isa && ran.count(kernel.name) != 0;
    });
}

}  // namespace heed_test
