#include "generators/driver/operation.h"

#include <algorithm>

#include "generators/driver/cuda_target.h"
#include "generators/driver/operation_forms.h"
#include "generators/driver/output.h"
#include "schedules/machine.h"

namespace heed {

namespace {

bool contains(const std::vector<std::string> &list, const std::string &value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

[[noreturn]] void refuse(const OpSpec &spec, const std::string &field, const std::string &value,
                         const std::string &also = "") {
    throw BadInput(field + " = '" + value + "' is not allowed with op=" + op_name(spec.op) + also);
}

// The form of the operation for the instruction set and the element type.
template <typename Form, typename Has>
const Form &find(const std::vector<Form> &forms, const OpSpec &spec, const Has &has_isa) {
    bool has_any = false;
    for (const Form &form : forms) {
        if (form.op != spec.op || !has_isa(form)) continue;
        has_any = true;
        if (contains(form.dtypes, spec.dtype)) return form;
    }
    if (!has_any) refuse(spec, "isa", spec.isa);
    refuse(spec, "dtype", spec.dtype, ", isa=" + spec.isa);
}

// kv_append writes codes, attention_probs may read them.
void check_keys(const OpSpec &spec) {
    const bool codes = spec.kv_dtype == "i8";
    const std::string wanted = spec.op == Op::kv_append ? "i8" : spec.dtype;
    if (spec.kv_dtype != wanted && !(spec.op == Op::attention_probs && codes)) {
        refuse(spec, "kv_dtype", spec.kv_dtype, ": " + wanted);
    }
}

void check_rows(const OpSpec &spec) {
    const bool has_tile = (spec.op == Op::linear || spec.op == Op::linear_rows) && !is_cuda_isa(spec.isa);
    const bool fits = spec.isa == "amx" ? spec.rows % 16 == 0 && spec.rows <= 32 : spec.rows <= 12;
    if (has_tile != (spec.rows > 0) || !fits) refuse(spec, "rows", std::to_string(spec.rows), ", isa=" + spec.isa);
}

Op find_op(const std::string &name) {
    int op = 0;
    while (op_name(static_cast<Op>(op)) != name) op++;
    return static_cast<Op>(op);
}

OpSpec read_spec(Options &options) {
    std::vector<std::string> names;
    for (int op = 0; op < num_operations; op++) names.emplace_back(op_name(static_cast<Op>(op)));
    OpSpec spec;
    spec.name = options.get("name");
    spec.op = find_op(options.choice("op", "", names));
    spec.rows = std::stoi(
        options.choice("rows", "0", {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "16", "32"}));
    spec.head_dim = std::stoi(options.choice("head_dim", "0", {"0", "64", "128", "256"}));
    spec.dtype = options.choice("dtype", "", {"f32", "f16", "bf16", "u8", "i32"});
    spec.kv_dtype = options.get("kv_dtype", spec.dtype);
    spec.isa = options.choice("isa", "", all_isas());
    if (is_cuda_isa(spec.isa)) return spec;
    // Tables and caches may pass 2^31 elements; the runtime keeps strides below.
    spec.target = target_of_isa(spec.isa).with_feature(Halide::Target::LargeBuffers);
    if (const std::string extra = options.get("extra_features", "none"); extra != "none") {
        spec.target = Halide::Target(spec.target.to_string() + "-" + extra);
    }
    return spec;
}

std::string registry_line(const OpSpec &spec, int rows, int columns) {
    const uint64_t hash = op_arguments_hash(spec.op, is_cuda_isa(spec.isa), spec.dtype == "bf16");
    return "HEED_OP(" + spec.name + ", " + op_name(spec.op) + ", " + spec.dtype + ", " + spec.kv_dtype + ", " +
           spec.isa + ", " + std::to_string(rows) + ", " + std::to_string(columns) + ", " + std::to_string(hash) +
           "u)\n";
}

}  // namespace

ElementType OpSpec::type() const {
    return dtype == "f16" ? ElementType::f16 : dtype == "bf16" ? ElementType::bf16 : ElementType::f32;
}

const CpuForm &find_cpu_form(const OpSpec &spec) {
    check_keys(spec);
    check_rows(spec);
    if (spec.head_dim != 0) refuse(spec, "head_dim", std::to_string(spec.head_dim));
    return find(cpu_forms(), spec, [&](const CpuForm &form) { return contains(form.isas, spec.isa); });
}

const CudaForm &find_cuda_form(const OpSpec &spec) {
    check_keys(spec);
    check_rows(spec);
    return find(cuda_forms(), spec,
                [&](const CudaForm &form) { return form.isa == spec.isa && form.head_dim == spec.head_dim; });
}

void generate_operation(Options &options) {
    const OpSpec spec = read_spec(options);
    const std::string base = options.get("out") + "/" + spec.name;
    if (is_cuda_isa(spec.isa)) {
        const CudaForm &form = find_cuda_form(spec);
        const cuda::Toolkit toolkit = read_toolkit(options, spec.isa);
        options.get("extra_features", "none");
        options.refuse_unknown();
        const cuda::RewriteOptions rewrite = {capability_of(spec.isa), form.threads};
        write_cuda_kernel(cuda::assemble(form.make(spec), rewrite, toolkit, base), form.shared_bytes, base);
        write_registry_line(registry_line(spec, 0, spec.head_dim), base);
        return;
    }
    const CpuForm &form = find_cpu_form(spec);
    const std::set<std::string> more = options.set_of("write", {"stmt", "assembly"});
    options.refuse_unknown();
    const CpuForm::Made made = form.make(spec);
    write_module(made.module, more, base);
    write_registry_line(registry_line(spec, made.rows, made.columns), base);
}

}  // namespace heed
