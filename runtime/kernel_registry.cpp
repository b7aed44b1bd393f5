#include "kernel_registry.h"

#include <algorithm>
#include <cstring>

#include "cpu.h"
#include "status.h"

namespace heed {
namespace {

const char *storage_name(heed_kv_storage storage) {
    switch (storage) {
    case HEED_KV_CONTIGUOUS:
        return "contiguous";
    case HEED_KV_VARLEN:
        return "varlen";
    case HEED_KV_PAGED:
        return "paged";
    }
    return "?";
}

constexpr struct {
    uint32_t bit;
    const char *name;
} features[] = {{feature_bias, "bias"},
                {feature_mask, "mask"},
                {feature_softcap, "softcap"},
                {feature_alibi, "alibi"},
                {feature_dropout, "dropout"}};

// "needs X, has Y" for a head dim that differs; empty when the row takes it.
std::string head_dim_reason(const char *name, int32_t row_dim, int32_t asked) {
    if (row_dim == 0 || row_dim == asked) return "";
    return std::string(name) + " is " + std::to_string(asked) + ", the row has " + std::to_string(row_dim);
}

}  // namespace

uint32_t machine_isas() {
    uint32_t isas = 0;
    for (const Isa isa : {Isa::x86_64, Isa::avx2, Isa::avx512}) {
        if (cpu_supports(isa)) isas |= 1u << static_cast<int>(isa);
    }
    return isas;
}

std::string why_not(const Kernel &row, const RowRequest &request, uint32_t isas) {
    if ((isas & (1u << static_cast<int>(row.isa))) == 0) return machine_reason(row);
    if (row.dtype != request.dtype) {
        return std::string("dtype is ") + dtype_name(request.dtype) + ", the row has " + dtype_name(row.dtype);
    }
    if (row.kv_dtype != request.kv_dtype) {
        return std::string("kv_dtype is ") + dtype_name(request.kv_dtype) + ", the row has " + dtype_name(row.kv_dtype);
    }
    if (row.kv_storage != HEED_KV_PAGED && request.kv_storage == HEED_KV_PAGED) {
        return std::string("kv_storage is ") + storage_name(request.kv_storage) + ", the row has " +
               storage_name(row.kv_storage);
    }
    const uint32_t missing = request.features & ~row.features;
    for (const auto &feature : features) {
        if (missing & feature.bit) return std::string("the row has no ") + feature.name;
    }
    std::string reason = head_dim_reason("head_dim", row.head_dim, request.head_dim);
    if (reason.empty()) reason = head_dim_reason("head_dim_v", row.head_dim_v, request.head_dim_v);
    return reason;
}

const char *machine_reason(const Kernel &row) {
    switch (row.isa) {
    case Isa::x86_64:
        return "this CPU lacks SSE4.1";
    case Isa::avx2:
        return "this CPU or system lacks AVX2, FMA or F16C";
    case Isa::avx512:
        return "this CPU or system lacks AVX-512 F, CD, BW, DQ or VL";
    }
    return "unknown ISA";
}

}  // namespace heed

extern "C" {

int32_t heed_kernel_count(void) { return heed_kernel_table.count; }

heed_status heed_kernel_info(int32_t index, heed_kernel_info_t *info) {
    if (info == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_kernel_info: info is NULL");
    if (info->struct_size != sizeof(heed_kernel_info_t)) {
        return heed::fail(HEED_INVALID_ARGUMENT, "heed_kernel_info_t.struct_size is %u; it must be %zu",
                          info->struct_size, sizeof(heed_kernel_info_t));
    }
    if (index < 0 || index >= heed_kernel_table.count) {
        return heed::fail(HEED_INVALID_ARGUMENT, "heed_kernel_info: index is %d; it must be 0..%d", index,
                          heed_kernel_table.count - 1);
    }
    const heed::Kernel &row = heed_kernel_table.rows[index];
    heed_kernel_info_t result = {};
    result.struct_size = sizeof(heed_kernel_info_t);
    result.phase = static_cast<heed_phase>(row.phase);
    result.dtype = row.dtype;
    result.kv_dtype = row.kv_dtype;
    result.head_dim = row.head_dim;
    result.head_dim_v = row.head_dim_v;
    result.features = row.features;
    result.kv_storage = row.kv_storage;
    result.isa = static_cast<heed_isa>(row.isa);
    result.row_block = row.row_block;
    result.kv_block = row.kv_block;
    result.supported = heed::cpu_supports(row.isa);
    result.scratch_bytes = row.scratch_per_thread;
    result.code_bytes = row.code_bytes;
    result.name = row.name;
    result.schedule = row.schedule;
    result.unsupported_reason = result.supported ? "" : heed::machine_reason(row);
    *info = result;
    return HEED_OK;
}

}  // extern "C"
