#include "op_row.h"

#include "ops.h"

namespace heed {
namespace {

template <typename Kernel>
Halide::Module compile(const OpRow &row, Kernel kernel, void (*schedule)(Kernel &, const Machine &)) {
    schedule(kernel, machine_of(row.target));
    return kernel.pipeline().compile_to_module(kernel.arguments(), row.name, row.target);
}

}  // namespace

std::string OpRow::error() const {
    const std::string wanted_kv = op == "kv_append" ? "i8" : dtype;
    if (kv_dtype != wanted_kv) return "kv_dtype = '" + kv_dtype + "' is not allowed with op=" + op + ": " + wanted_kv;
    if ((op == "dropout_mask") != (dtype == "u8")) return "dtype = '" + dtype + "' is not allowed with op=" + op;
    return "";
}

std::string OpRow::registry_line() const {
    return "HEED_OP(" + name + ", " + op + ", " + dtype + ", " + kv_dtype + ", " + isa + ")\n";
}

Halide::Module compile_op(const OpRow &row) {
    const ElementType type = row.dtype == "f16"    ? ElementType::f16
                             : row.dtype == "bf16" ? ElementType::bf16
                                                   : ElementType::f32;
    if (row.op == "rope") return compile(row, RopeKernel(type), schedule_rope_x86);
    if (row.op == "kv_append") return compile(row, KvAppendKernel(type), schedule_kv_append_x86);
    if (row.op == "merge_states") return compile(row, MergeStatesKernel(type), schedule_merge_states_x86);
    return compile(row, DropoutMaskKernel(), schedule_dropout_mask_x86);
}

}  // namespace heed
