#include "runtime/kernel_registry.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/backend.h"
#include "runtime/status.h"
#include "runtime/view.h"

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

// Most names of score functions are empty: a plan compares them with those of all kernels.
bool are_equal(const char *a, const char *b) { return *a == *b && (*a == '\0' || std::strcmp(a, b) == 0); }

// For a kernel of exactly this head dim, or for any.
bool takes_head_dim(const Kernel &kernel, int32_t kernel_dim, int32_t asked) {
    return kernel_dim == 0 ? asked <= backend_of(kernel.target.device()).largest_head_dim() : kernel_dim == asked;
}

std::string head_dim_reason(const char *name, const Kernel &kernel, int32_t kernel_dim, int32_t asked) {
    const std::string is = std::string(name) + " is " + std::to_string(asked) + ", the kernel ";
    if (kernel_dim != 0) return is + "has " + std::to_string(kernel_dim);
    return is + "serves up to " + std::to_string(backend_of(kernel.target.device()).largest_head_dim());
}

// What a request asks for and a kernel has not, in the order of complaints.
enum class Mismatch {
    none,
    device,
    target,
    dtype,
    kv_dtype,
    copies,
    score_mod,
    kv_storage,
    features,
    head_dim,
    head_dim_v,
    keys
};

// Blocks that the kernel packs: whole ones, and at most one that is not full per sequence.
int64_t packed_blocks(const Kernel &kernel, const KernelRequest &request) {
    return kernel.packed_bytes == 0 ? 0 : request.keys / kernel.kv_block + request.sequences;
}

// A copy of gigabytes: other kernels read more keys than that where they are.
int64_t most_packed_blocks(const Kernel &kernel, const KernelRequest &request) {
    const int64_t bytes = packed_block_bytes(kernel, request.head_dim, request.head_dim_v);
    return std::numeric_limits<int32_t>::max() / std::max<int64_t>(bytes / 2, 1);
}

Mismatch mismatch(const Kernel &kernel, const KernelRequest &request, uint32_t targets) {
    if (kernel.target.device() != request.device) return Mismatch::device;
    if ((targets & kernel.target.bit()) == 0) return Mismatch::target;
    if (kernel.dtype != request.dtype) return Mismatch::dtype;
    const bool widens = kernel.kv_dtype != request.kv_dtype;
    if (widens && !(request.kv_dtype == request.dtype && may_read_copies(kernel))) return Mismatch::kv_dtype;
    if (widens && request.copies == CopiesOfHeads::no) return Mismatch::copies;
    if (!are_equal(kernel.score_mod, request.score_mod)) return Mismatch::score_mod;
    if (needs_copies(kernel, request.kv_storage, request.kv_dtype) &&
        (request.copies == CopiesOfHeads::no || !may_read_copies(kernel))) {
        return Mismatch::kv_storage;
    }
    if ((request.features & ~kernel.features) != 0) return Mismatch::features;
    if (!takes_head_dim(kernel, kernel.head_dim, request.head_dim)) return Mismatch::head_dim;
    if (!takes_head_dim(kernel, kernel.head_dim_v, request.head_dim_v)) return Mismatch::head_dim_v;
    if (packed_blocks(kernel, request) > most_packed_blocks(kernel, request)) return Mismatch::keys;
    return Mismatch::none;
}

// What heed_kernel_get_info and heed_op_get_info are asked for.
template <typename Info>
heed_status check_info(const char *function, const char *name, int32_t index, int32_t count, const Info *info) {
    if (info == nullptr) return fail(HEED_INVALID_ARGUMENT, "%s: info is NULL", function);
    if (info->struct_size != sizeof(Info)) {
        return fail(HEED_INVALID_ARGUMENT, "%s.struct_size is %u; it must be %zu", name, info->struct_size,
                    sizeof(Info));
    }
    if (index >= 0 && index < count) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "%s: index is %d; it must be 0..%d", function, index, count - 1);
}

}  // namespace

const char *target_reason(KernelTarget target) {
    switch (target.value) {
    case HEED_X86_64:
        return "this CPU lacks SSE4.1";
    case HEED_AVX2:
        return "this CPU or system lacks AVX2, FMA or F16C";
    case HEED_AVX512:
        return "this CPU or system lacks AVX-512 F, CD, BW, DQ or VL";
    case HEED_AVX512_BF16:
        return "this CPU or system lacks AVX-512 BF16, IFMA, VBMI, VBMI2, VNNI or BITALG";
    case HEED_AMX:
        return "this CPU or system lacks AMX_TILE, AMX_BF16 or AVX-512 FP16, or refuses the use of tiles";
    case HEED_SM75:
        return "the kernel needs compute capability 7.5, the chip has less";
    case HEED_SM80:
        return "the kernel needs compute capability 8.0, the chip has less";
    case HEED_SM90:
        return "the kernel needs compute capability 9.0, the chip has another";
    }
    return "unknown ISA";
}

// As KeyCopies::of_heads: the schedule reads a task's fields inside the task, and no sweep comes before. Numbers are
// widened by AVX2.
bool may_read_copies(const Kernel &kernel) {
    const bool may_widen = kernel.dtype == HEED_F32 || kernel.target.value >= HEED_AVX2;
    return kernel.phase == Phase::prefill && kernel.kv_storage != HEED_KV_PAGED && kernel.kv_dtype == HEED_F32 &&
           may_widen && !sweeps(kernel) && std::strcmp(kernel.schedule, "x86") == 0;
}

bool needs_copies(const Kernel &kernel, heed_kv_storage storage, heed_dtype kv_dtype) {
    return kernel.kv_dtype != kv_dtype || (storage == HEED_KV_PAGED && kernel.kv_storage != HEED_KV_PAGED);
}

std::string feature_names(uint32_t bits) {
    std::string names;
    for (const auto &feature : features) {
        if (bits & feature.bit) names += std::string(" ") + feature.name;
    }
    return names;
}

int64_t packed_block_bytes(const Kernel &kernel, int64_t head_dim, int64_t head_dim_v) {
    if (kernel.head_dim != 0) return kernel.packed_bytes;
    return kernel.packed_bytes * (round_up(head_dim, packed_unit) + round_up(head_dim_v, packed_unit));
}

bool packs_keys(const Kernel &kernel) {
    const int64_t of_values = int64_t{2} * kernel.kv_block * kernel.head_dim_v;
    return packs_values(kernel) && (kernel.head_dim == 0 || kernel.packed_bytes > of_values);
}

const char *foreign_kernel(const KernelTable &table) {
    for (int32_t i = 0; i < table.count; i++) {
        if (table.kernels[i].arguments_hash != attention_arguments_hash) return table.kernels[i].name;
    }
    for (int32_t i = 0; i < table.num_ops; i++) {
        const OpKernel &kernel = table.ops[i];
        if (kernel.arguments_hash != expected_hash(kernel.op, kernel.target, kernel.dtype)) return kernel.name;
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

bool serves(const Kernel &kernel, const KernelRequest &request, uint32_t targets) {
    return mismatch(kernel, request, targets) == Mismatch::none;
}

std::string why_not(const Kernel &kernel, const KernelRequest &request, uint32_t targets) {
    switch (mismatch(kernel, request, targets)) {
    case Mismatch::none:
        return "";
    case Mismatch::device:
        return std::string("device is ") + backend_of(request.device).name() + ", the kernel runs on " +
               backend_of(kernel.target.device()).name();
    case Mismatch::target:
        return target_reason(kernel.target);
    case Mismatch::dtype:
        return std::string("dtype is ") + dtype_name(request.dtype) + ", the kernel has " + dtype_name(kernel.dtype);
    case Mismatch::kv_dtype:
        return std::string("kv_dtype is ") + dtype_name(request.kv_dtype) + ", the kernel has " +
               dtype_name(kernel.kv_dtype);
    case Mismatch::copies:
        return "the kernel reads copies of heads in f32, of up to 8 MiB, and no packed queries with batch_invariant";
    case Mismatch::score_mod:
        return std::string("score_mod is \"") + request.score_mod + "\", the kernel has \"" + kernel.score_mod + "\"";
    case Mismatch::kv_storage:
        return std::string("kv_storage is ") + storage_name(request.kv_storage) + ", the kernel has " +
               storage_name(kernel.kv_storage);
    case Mismatch::features:
        for (const auto &feature : features) {
            if (request.features & ~kernel.features & feature.bit) {
                return std::string("the kernel has no ") + feature.name;
            }
        }
        break;
    case Mismatch::head_dim:
        return head_dim_reason("head_dim", kernel, kernel.head_dim, request.head_dim);
    case Mismatch::head_dim_v:
        return head_dim_reason("head_dim_v", kernel, kernel.head_dim_v, request.head_dim_v);
    case Mismatch::keys:
        return "batch, num_kv_heads and max_kv_len are up to " + std::to_string(packed_blocks(kernel, request)) +
               " blocks of " + std::to_string(kernel.kv_block) + " keys, the kernel packs up to " +
               std::to_string(most_packed_blocks(kernel, request));
    }
    return "?";
}

// What kernels of attention and of operations have in common.
template <typename Info, typename AnyKernel>
Info info_of(const AnyKernel &kernel) {
    Info info = {};
    info.struct_size = sizeof(Info);
    info.dtype = kernel.dtype;
    info.kv_dtype = kernel.kv_dtype;
    info.isa = kernel.target.value;
    info.name = kernel.name;
    info.unsupported_reason = backend_of(kernel.target.device()).why_not_run(kernel.target);
    info.supported = info.unsupported_reason[0] == '\0';
    return info;
}

}  // namespace heed

extern "C" {

int32_t heed_kernel_count(void) { return heed_kernel_table.count; }

heed_status heed_kernel_get_info(int32_t index, heed_kernel_info *info) {
    const heed_status status =
        heed::check_info("heed_kernel_get_info", "heed_kernel_info", index, heed_kernel_table.count, info);
    if (status) return status;
    const heed::Kernel &kernel = heed_kernel_table.kernels[index];
    auto result = heed::info_of<heed_kernel_info>(kernel);
    result.phase = static_cast<heed_phase>(kernel.phase);
    result.head_dim = kernel.head_dim;
    result.head_dim_v = kernel.head_dim_v;
    result.features = kernel.features;
    result.kv_storage = kernel.kv_storage;
    result.row_block = kernel.row_block;
    result.kv_block = kernel.kv_block;
    result.scratch_bytes = kernel.scratch_per_thread;
    result.code_bytes = kernel.code_bytes;
    result.schedule = kernel.schedule;
    result.score_mod = kernel.score_mod;
    *info = result;
    return HEED_OK;
}

int32_t heed_op_count(void) { return heed_kernel_table.num_ops; }

heed_status heed_op_get_info(int32_t index, heed_op_info *info) {
    const heed_status status =
        heed::check_info("heed_op_get_info", "heed_op_info", index, heed_kernel_table.num_ops, info);
    if (status) return status;
    const heed::OpKernel &kernel = heed_kernel_table.ops[index];
    auto result = heed::info_of<heed_op_info>(kernel);
    result.rows = kernel.rows;
    result.columns = kernel.columns;
    result.op = heed::op_name(kernel.op);
    *info = result;
    return HEED_OK;
}

}  // extern "C"
