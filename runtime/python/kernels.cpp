// heed.kernels: the table of kernels.
#include "heed/fields.h"
#include "runtime/python/array.h"
#include "runtime/python/bindings.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

nb::dict fields_of(const heed_kernel_info &info) {
    nb::dict result;
    result["name"] = info.name;
    result["phase"] = info.phase == HEED_DECODE ? "decode" : "prefill";
    result["dtype"] = dtype_name(info.dtype);
    result["kv_dtype"] = dtype_name(info.kv_dtype);
    result["head_dim"] = info.head_dim;
    result["head_dim_v"] = info.head_dim_v;
    result["features"] = info.features;
    result["kv_storage"] = info.kv_storage == HEED_KV_PAGED ? "paged" : "contiguous";
    result["isa"] = heed_isa_word(info.isa);
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

nb::list list_kernels() {
    nb::list result;
    for (const heed_kernel_info &info : kernels()) result.append(fields_of(info));
    return result;
}

}  // namespace

void bind_kernels(nb::module_ &module) { module.def("kernels", list_kernels); }

}  // namespace heed::python
