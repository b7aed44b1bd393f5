#include "generators/driver/operation.h"

#include "generators/driver/cuda_forms.h"
#include "generators/driver/cuda_target.h"
#include "generators/driver/linked_score_mod.h"
#include "generators/driver/output.h"
#include "generators/table/operations.h"
#include "schedules/operation.h"

namespace heed {

namespace {

OpSpec read_spec(Options &options) {
    OpSpec spec;
    spec.name = options.get("name");
    const std::string op = options.choice("op", "", table::operation_names());
    spec.op = table::operation_of(op);
    spec.isa = options.get("isa");
    spec.dtype = options.get("dtype");
    spec.kv_dtype = options.get("kv_dtype", spec.dtype);
    const std::string rows = options.get("rows", "0"), head_dim = options.get("head_dim", "0");
    const std::string error = table::op_kernel_error({op, spec.dtype, spec.kv_dtype, rows, head_dim, spec.isa});
    if (!error.empty()) throw BadInput(error);
    spec.rows = std::stoi(rows);
    spec.head_dim = std::stoi(head_dim);
    const bool on_cuda = table::is_cuda(spec.isa);
    if (may_have_score_mod(spec.op, on_cuda)) {
        spec.score_mod = linked_score_gradient(options.get("score_mod", "none"), on_cuda);
    }
    if (on_cuda) {
        spec.target = cuda_target();
        return spec;
    }
    // Tables and caches may pass 2^31 elements; the runtime keeps strides below.
    spec.target = target_of_isa(spec.isa).with_feature(Halide::Target::LargeBuffers);
    if (const std::string extra = options.get("extra_features", "none"); extra != "none") {
        spec.target = Halide::Target(spec.target.to_string() + "-" + extra);
    }
    return spec;
}

// For operations that the contract gives arguments on CPUs.
OpModule make_on_cpu(const OpSpec &spec) {
    switch (spec.op) {
#define HEED_MAKE(name, cpu, cuda, ...)                                                                                \
    case Op::name:                                                                                                     \
        if constexpr (HEED_LIST_HASH(cpu) != HEED_LIST_HASH(HEED_NO_ARGUMENTS)) return make_##name(spec);              \
        break;
        HEED_OPERATIONS(HEED_MAKE)
#undef HEED_MAKE
    }
    throw BadInput(std::string("op = '") + op_name(spec.op) + "' has no arguments on CPUs");
}

std::string registry_line(const OpSpec &spec, const std::string &score_mod, int rows, int columns) {
    const uint64_t hash = op_arguments_hash(spec.op, table::is_cuda(spec.isa), spec.dtype == "bf16");
    return "HEED_OP(" + spec.name + ", " + op_name(spec.op) + ", " + spec.dtype + ", " + spec.kv_dtype + ", " +
           spec.isa + ", " + std::to_string(rows) + ", " + std::to_string(columns) + ", " + std::to_string(hash) +
           "u, " + score_mod_fields(score_mod, spec.score_mod) + ")\n";
}

}  // namespace

void generate_operation(Options &options) {
    const OpSpec spec = read_spec(options);
    const std::string base = options.get("out") + "/" + spec.name, score_mod = options.get("score_mod", "none");
    if (table::is_cuda(spec.isa)) {
        const CudaForm &form = find_cuda_form(spec);
        const cuda::Toolkit toolkit = read_toolkit(options, spec.isa);
        options.get("extra_features", "none");
        options.refuse_unknown();
        const cuda::RewriteOptions rewrite = {capability_of(spec.isa), form.threads, form.blocks};
        write_cuda_kernel(cuda::assemble(form.make(spec), rewrite, toolkit, base), form.shared_bytes, base);
        write_registry_line(registry_line(spec, score_mod, 0, spec.head_dim), base);
        return;
    }
    const std::set<std::string> more = options.set_of("write", {"stmt", "assembly"});
    options.refuse_unknown();
    const OpModule made = make_on_cpu(spec);
    write_module(made.module, more, base, made.streams_tiles);
    write_registry_line(registry_line(spec, score_mod, made.rows, made.columns), base);
}

}  // namespace heed
