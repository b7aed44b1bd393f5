#include "generators/driver/operation_forms.h"
#include "schedules/ops.h"

namespace heed {

namespace {

using Made = CpuForm::Made;

template <typename Kernel>
Made compile(const OpSpec &spec, Kernel kernel, Passes (*schedule)(Kernel &, const Machine &), int rows = 0,
             int columns = 0) {
    const Passes passes = schedule(kernel, machine_of(spec.target));
    Halide::Pipeline pipeline = kernel.pipeline();
    passes.add_to(pipeline);
    Halide::Module module = pipeline.compile_to_module(kernel.arguments(), spec.name, spec.target);
    check_outputs(module, kernel.output_types());
    passes.check();
    return {module, rows, columns};
}

template <typename Kernel>
std::function<Made(const OpSpec &)> of_type(Passes (*schedule)(Kernel &, const Machine &)) {
    return [schedule](const OpSpec &spec) { return compile(spec, Kernel(spec.type()), schedule); };
}

template <typename Kernel>
std::function<Made(const OpSpec &)> of_tile(Passes (*schedule)(Kernel &, const Machine &)) {
    return [schedule](const OpSpec &spec) {
        const LinearTile tile = linear_tile(machine_of(spec.target), spec.rows);
        return compile(spec, Kernel(spec.type(), tile), schedule, tile.rows, tile.columns);
    };
}

Made backward(const OpSpec &spec) {
    return compile(spec, AttentionBackwardKernel(backward_tile(machine_of(spec.target))),
                   schedule_attention_backward_x86, BackwardTile::queries, BackwardTile::keys);
}

Made backward_bf16(const OpSpec &spec) {
    return compile(spec, AttentionBackwardTilesKernel(),
                   spec.isa == "amx" ? schedule_attention_backward_amx : schedule_attention_backward_dots_x86,
                   BackwardTilesBlock::queries, BackwardTilesBlock::keys);
}

Made probs(const OpSpec &spec) {
    const ElementType keys = spec.kv_dtype == "i8" ? ElementType::i8 : spec.type();
    return compile(spec, AttentionProbsKernel(spec.type(), keys), schedule_attention_probs_x86);
}

Made dropout_mask(const OpSpec &spec) { return compile(spec, DropoutMaskKernel(), schedule_dropout_mask_x86); }

}  // namespace

const std::vector<CpuForm> &cpu_forms() {
    static const std::vector<std::string> floats = {"f32", "f16", "bf16"}, bf16 = {"bf16"},
                                          plain = {"x86_64", "avx2", "avx512"}, dots = {"avx512bf16", "amx"};
    static const std::vector<CpuForm> forms = {
        {Op::attention_backward, {"f32"}, plain, backward},
        {Op::attention_backward, bf16, dots, backward_bf16},
        {Op::attention_probs, floats, plain, probs},
        {Op::dropout_mask, {"u8"}, plain, dropout_mask},
        {Op::kv_append, floats, plain, of_type(schedule_kv_append_x86)},
        {Op::layer_norm, floats, plain, of_type(schedule_layer_norm_x86)},
        {Op::linear, floats, plain, of_tile(schedule_linear_x86)},
        {Op::linear, bf16, dots, of_tile(schedule_linear_x86)},
        {Op::linear_rows, floats, plain, of_tile(schedule_linear_rows_x86)},
        {Op::linear_rows, bf16, dots, of_tile(schedule_linear_rows_x86)},
        {Op::merge_states, floats, plain, of_type(schedule_merge_states_x86)},
        {Op::rope, floats, plain, of_type(schedule_rope_x86)},
    };
    return forms;
}

}  // namespace heed
