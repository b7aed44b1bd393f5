#include "kernel_registry.h"

#include <algorithm>
#include <cstring>

#include "backend.h"
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
} features[] = {
#define HEED_NAMED_FEATURE(name, bit) {feature_##name, #name},
    HEED_FEATURES(HEED_NAMED_FEATURE)
#undef HEED_NAMED_FEATURE
};

// "needs X, has Y" for a head dim that differs; empty when the row takes it.
std::string head_dim_reason(const char *name, const Kernel &row, int32_t row_dim, int32_t asked) {
    const int32_t largest = backend_of(device_of(row.isa)).largest_head_dim();
    if (row_dim == 0 && asked > largest) {
        return std::string(name) + " is " + std::to_string(asked) + ", the row serves up to " + std::to_string(largest);
    }
    if (row_dim == 0 || row_dim == asked) return "";
    return std::string(name) + " is " + std::to_string(asked) + ", the row has " + std::to_string(row_dim);
}

}  // namespace

const char *isa_reason(Isa isa) {
    switch (isa) {
    case Isa::x86_64:
        return "this CPU lacks SSE4.1";
    case Isa::avx2:
        return "this CPU or system lacks AVX2, FMA or F16C";
    case Isa::avx512:
        return "this CPU or system lacks AVX-512 F, CD, BW, DQ or VL";
    case Isa::avx512bf16:
        return "this CPU or system lacks AVX-512 BF16, IFMA, VBMI, VBMI2, VNNI or BITALG";
    case Isa::amx:
        return "this CPU or system lacks AMX_TILE, AMX_BF16 or AVX-512 FP16, or refuses the use of tiles";
    case Isa::sm75:
        return "the row needs compute capability 7.5, the chip has less";
    case Isa::sm80:
        return "the row needs compute capability 8.0, the chip has less";
    }
    return "unknown ISA";
}

std::string feature_names(uint32_t bits) {
    std::string names;
    for (const auto &feature : features) {
        if (bits & feature.bit) names += std::string(" ") + feature.name;
    }
    return names;
}

const char *foreign_kernel(const KernelTable &table) {
    for (int32_t i = 0; i < table.count; i++) {
        if (table.rows[i].arguments_hash != attention_arguments_hash) return table.rows[i].name;
    }
    for (int32_t i = 0; i < table.num_ops; i++) {
        const OpKernel &row = table.ops[i];
        if (row.arguments_hash != expected_hash(row.op, row.isa, row.dtype)) return row.name;
    }
    return nullptr;
}

heed_status check_kernel_library() {
    static const char *const name = foreign_kernel(heed_kernel_table);
    if (name == nullptr) return HEED_OK;
    return fail(HEED_UNSUPPORTED,
                "kernel %s takes other arguments than this runtime passes: generate the kernel library with Heed %s",
                name, heed_version());
}

std::string why_not(const Kernel &row, const RowRequest &request, uint32_t isas) {
    if (device_of(row.isa) != request.device) {
        return request.device == HEED_CPU ? "device is HEED_CPU, the row runs on CUDA"
                                          : "device is HEED_CUDA, the row runs on a CPU";
    }
    if ((isas & (1u << static_cast<int>(row.isa))) == 0) return isa_reason(row.isa);
    if (row.dtype != request.dtype) {
        return std::string("dtype is ") + dtype_name(request.dtype) + ", the row has " + dtype_name(row.dtype);
    }
    if (row.kv_dtype != request.kv_dtype) {
        return std::string("kv_dtype is ") + dtype_name(request.kv_dtype) + ", the row has " + dtype_name(row.kv_dtype);
    }
    if (std::strcmp(row.score_mod, request.score_mod) != 0) {
        return std::string("score_mod is \"") + request.score_mod + "\", the row has \"" + row.score_mod + "\"";
    }
    if (row.kv_storage != HEED_KV_PAGED && request.kv_storage == HEED_KV_PAGED) {
        return std::string("kv_storage is ") + storage_name(request.kv_storage) + ", the row has " +
               storage_name(row.kv_storage);
    }
    const uint32_t missing = request.features & ~row.features;
    for (const auto &feature : features) {
        if (missing & feature.bit) return std::string("the row has no ") + feature.name;
    }
    std::string reason = head_dim_reason("head_dim", row, row.head_dim, request.head_dim);
    if (reason.empty()) reason = head_dim_reason("head_dim_v", row, row.head_dim_v, request.head_dim_v);
    return reason;
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
    result.unsupported_reason = heed::backend_of(heed::device_of(row.isa)).why_not_run(row.isa);
    result.supported = result.unsupported_reason[0] == '\0';
    result.scratch_bytes = row.scratch_per_thread;
    result.code_bytes = row.code_bytes;
    result.name = row.name;
    result.schedule = row.schedule;
    result.score_mod = row.score_mod;
    *info = result;
    return HEED_OK;
}

}  // extern "C"
