#include "rows.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <tuple>

#include "amx_emulator.h"
#include "cpu.h"
#include "device.h"

namespace heed_test {
namespace {

std::mutex ran_mutex;
std::set<std::string> ran;

bool all_are_asked_for() {
    const char *const all = std::getenv("HEED_TEST_ALL_ROWS");
    return all != nullptr && all[0] == '1';
}

// What is emulated takes minutes: some rows stand for the others unless HEED_TEST_ALL_ROWS=1. Of tiles one head dim and
// one pair; on CUDA the rows of f16 for those of bf16, which differ in their conversions, but for one head dim and any
// on tensor cores, of wide tiles those of one head dim, and the rows of f32 for f16 with int8 keys on sm75.
bool leaves_out(const heed_kernel_info_t &info) {
    if (all_are_asked_for()) return false;
    if (info.isa == HEED_AMX && amx_is_emulated()) return info.head_dim != 64 && info.head_dim == info.head_dim_v;
    if (!is_cuda(info.isa) || !slow_device()) return false;
    if (std::strcmp(info.schedule, "wide") == 0) return info.dtype == HEED_BF16 || info.head_dim != 128;
    if (info.dtype == HEED_F16) return info.isa == HEED_SM75 && info.kv_dtype == HEED_I8;
    if (info.dtype != HEED_BF16) return false;
    return info.isa == HEED_SM75 || (info.head_dim != 64 && info.head_dim != 0);
}

}  // namespace

bool Row::leads() const {
    if (info.dtype != (cuda() ? HEED_F16 : HEED_F32) || int8_kv() || paged()) return false;
    return any_head_dim() || info.head_dim == 64 || all_are_asked_for();
}

Shape Row::shape(int32_t head_dim, int32_t head_dim_v) const {
    Shape shape;
    shape.head_dim = info.head_dim == 0 ? head_dim : info.head_dim;
    shape.head_dim_v = info.head_dim_v == 0 ? head_dim_v : info.head_dim_v;
    return shape;
}

Attention Row::attention(const Shape &shape, Data data, uint64_t seed) const {
    Attention a = make_attention(shape, data, seed, info.dtype, int8_kv());
    a.rounds_weights = rounds_weights(info);
    return a;
}

CallOptions Row::options() const {
    CallOptions options;
    options.kernel = name;
    options.kv_storage = info.kv_storage;
    return options;
}

std::vector<Row> all_rows() {
    std::vector<Row> rows;
    for (int32_t i = 0; i < heed_kernel_count(); i++) {
        heed_kernel_info_t info = {};
        info.struct_size = sizeof(info);
        if (heed_kernel_info(i, &info) != HEED_OK || leaves_out(info)) continue;
        const Row row = {info.name, info};
        if (row.cuda() == (test_device() == HEED_CUDA)) rows.push_back(row);
    }
    std::stable_sort(rows.begin(), rows.end(), [](const Row &x, const Row &y) {
        const auto key = [](const Row &row) {
            return std::make_tuple(row.info.dtype, row.info.kv_dtype, row.info.phase, row.info.head_dim,
                                   row.info.head_dim_v, row.info.features);
        };
        return key(x) < key(y);
    });
    return rows;
}

std::vector<Row> supported_rows() { return rows_with(0); }

std::vector<Row> rows_with(uint32_t features) {
    return only(all_rows(), [&](const Row &row) { return row.info.supported && row.has(features); });
}

std::vector<Row> rows_for(const Shape &shape, uint32_t features) {
    return only(rows_with(features), [&](const Row &row) {
        const Shape served = row.shape(shape.head_dim, shape.head_dim_v);
        return served.head_dim == shape.head_dim && served.head_dim_v == shape.head_dim_v;
    });
}

std::vector<Row> on_cpu(std::vector<Row> rows) {
    return test_device() == HEED_CPU ? std::move(rows) : std::vector<Row>();
}

const char *isa_name(heed_isa isa) {
    const char *const names[] = {"x86_64", "avx2", "avx512", "avx512bf16", "amx", "sm75", "sm80"};
    return names[isa];
}

std::vector<heed_isa> isas_of_device() {
    std::vector<heed_isa> isas;
    std::istringstream table(HEED_TABLE_ISAS);
    for (std::string name; table >> name;) {
        for (int isa = HEED_X86_64; isa <= HEED_SM80; isa++) {
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
    }
    return false;
}

void note_run(const std::string &kernel) {
    const std::lock_guard<std::mutex> lock(ran_mutex);
    ran.insert(kernel);
}

bool any_row_ran(heed_isa isa) {
    const std::lock_guard<std::mutex> lock(ran_mutex);
    const auto rows = all_rows();
    return std::any_of(rows.begin(), rows.end(),
                       [&](const Row &row) { return row.info.isa == isa && ran.count(row.name) != 0; });
}

}  // namespace heed_test
