// heed.kernels: the table of kernels.
#include "array.h"
#include "bindings.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

const char *isa_name(heed_isa isa) {
    switch (isa) {
    case HEED_X86_64:
        return "x86_64";
    case HEED_AVX2:
        return "avx2";
    case HEED_AVX512:
        return "avx512";
    case HEED_AVX512_BF16:
        return "avx512bf16";
    case HEED_AMX:
        return "amx";
    case HEED_SM75:
        return "sm75";
    case HEED_SM80:
        return "sm80";
    }
    return "?";
}

nb::dict row(const heed_kernel_info_t &info) {
    nb::dict result;
    result["name"] = info.name;
    result["phase"] = info.phase == HEED_DECODE ? "decode" : "prefill";
    result["dtype"] = dtype_name(info.dtype);
    result["kv_dtype"] = dtype_name(info.kv_dtype);
    result["head_dim"] = info.head_dim;
    result["head_dim_v"] = info.head_dim_v;
    result["features"] = info.features;
    result["kv_storage"] = info.kv_storage == HEED_KV_PAGED ? "paged" : "contiguous";
    result["isa"] = isa_name(info.isa);
    result["row_block"] = info.row_block;
    result["kv_block"] = info.kv_block;
    result["scratch_bytes"] = info.scratch_bytes;
    result["code_bytes"] = info.code_bytes;
    result["schedule"] = info.schedule;
    result["score_mod"] = info.score_mod;
    result["supported"] = info.supported;
    result["unsupported_reason"] = info.unsupported_reason;
    return result;
}

nb::list rows() {
    nb::list result;
    for (const heed_kernel_info_t &info : kernels()) result.append(row(info));
    return result;
}

}  // namespace

void bind_kernels(nb::module_ &module) { module.def("kernels", rows); }

}  // namespace heed::python
