#include "generators/driver/attention.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "generators/attention/kernel.h"
#include "generators/contract/operations.h"
#include "generators/driver/autoscheduler.h"
#include "generators/driver/cuda_target.h"
#include "generators/driver/linked_score_mod.h"
#include "generators/driver/output.h"
#include "generators/driver/parameters.h"
#include "generators/lowering/scratch_bytes.h"
#include "generators/table/words.h"
#include "schedules/cuda/attention.h"
#include "schedules/cuda/attention_tensor.h"
#include "schedules/schedules.h"

namespace heed {

namespace {

using Halide::Target;

// Whether a kernel of CUDA has no products of tensor cores.
bool is_of_cores(const std::string &isa) { return isa == "sm75"; }

std::string cuda_error(const std::string &isa, const AttentionConfig &config) {
    const int widest = std::max(config.head_dim, config.head_dim_v);
    if (widest > max_cuda_head_dim) {
        return "head_dim = " + std::to_string(widest) + " is not allowed with CUDA: 1.." +
               std::to_string(max_cuda_head_dim) + ", or any";
    }
    if (config.phase == Phase::decode && !config.has_gqa) {
        return "phase = decode without the feature gqa is not allowed with CUDA";
    }
    if (config.dtype == ElementType::f32 && isa == "sm80") return "dtype = f32 is not allowed with isa=sm80: f16, bf16";
    if (isa == "sm90" && (config.phase == Phase::decode || config.any_head_dim() || config.has_kv_scales() ||
                          config.dtype == ElementType::f32 || config.has_dropout || config.has_score_mod())) {
        return "isa = sm90 is not allowed here: prefill kernels of f16 and bf16, of given head dims, without dropout "
               "and score functions";
    }
    const bool is_plain_decode = config.phase == Phase::decode && config.is_plain();
    const bool is_narrow = !config.any_head_dim() && widest <= 128;
    if (config.wide_group && !(is_plain_decode && is_narrow && isa == "sm80")) {
        return "schedule = wide is not allowed here: plain decode kernels of sm80, head dims up to 128";
    }
    return config.error();
}

void fit_cuda_tiles(const std::string &isa, AttentionConfig &config) {
    config.in_warpgroups = isa == "sm90";
    const AttentionDevice::Tile tile =
        is_of_cores(isa) ? attention_form_cuda(config).tile : attention_tensor_tile(config);
    config.row_block = tile.queries();
    config.kv_block = config.masked_block = tile.products.columns;
    config.lanes = 16;  // elements to which a row is padded
    config.key_tile = 8;
}

int head_dim_of(const std::string &text) {
    if (text == "any") {
        return 0;
    }
    size_t end = 0;
    const int value = text.find_first_not_of("0123456789") == std::string::npos ? std::stoi(text, &end) : -1;
    if (value < 1 || value > max_head_dim) {
        throw BadInput("head_dim = '" + text + "' is not allowed: 1..640, or any");
    }
    return value;
}

struct AttentionSpec {
    std::string name, isa, schedule, score_mod;
    Target target;
    AttentionConfig config;
};

std::string feature_words() {
    std::string words;
#define HEED_ADD_WORD(name, bit) words += " " #name;
    HEED_FEATURES(HEED_ADD_WORD)
#undef HEED_ADD_WORD
    return words;
}

void read_features(const std::string &text, AttentionConfig &config) {
    std::istringstream features(text == "none" ? "" : text);
    for (std::string feature; std::getline(features, feature, '_');) {
        bool *flag = nullptr;
#define HEED_FIND_FLAG(name, bit)                                                                                      \
    if (feature == #name) flag = &config.has_##name;
        HEED_FEATURES(HEED_FIND_FLAG)
#undef HEED_FIND_FLAG
        if (flag == nullptr || (feature == "gqa" && config.phase == Phase::prefill)) {
            throw BadInput("features = '" + text + "' is not allowed: none, or joined by _ of" + feature_words() +
                           "; gqa in decode only");
        }
        *flag = true;
    }
}

bool is_for_x86(const AttentionSpec &spec) {
    return spec.schedule == "x86" || spec.schedule == "wide" || spec.schedule == "whole";
}

AttentionSpec spec_of(Options &options) {
    AttentionSpec spec;
    spec.name = options.get("name");
    const std::string dtype = options.choice("dtype", "f32", {"f32", "f16", "bf16"});
    spec.config.dtype = element_type_of(dtype);
    spec.config.paged = options.choice("storage", "contiguous", {"contiguous", "paged"}) == "paged";
    spec.isa = options.choice("isa", "", table::all_isas());
    std::vector<std::string> kv_dtypes = {dtype, "i8"};
    if (dtype != "f32" && !table::is_cuda(spec.isa)) kv_dtypes.emplace_back("f32");
    spec.config.kv_dtype = element_type_of(options.choice("kv_dtype", dtype, kv_dtypes));
    spec.schedule =
        table::is_cuda(spec.isa) ? options.choice("schedule", "cuda", {"cuda", "wide"})
        : has_bf16_dots(spec.isa)
            ? options.choice("schedule", "x86", {"x86", "wide", "whole"})
            : options.choice("schedule", "x86", {"x86", "wide", "whole", "default", "Mullapudi2016", "Adams2019"});
    spec.config.phase =
        options.choice("phase", "", {"prefill", "decode"}) == "prefill" ? Phase::prefill : Phase::decode;
    spec.config.head_dim = head_dim_of(options.get("head_dim"));
    spec.config.head_dim_v = head_dim_of(options.get("head_dim_v", options.get("head_dim")));
    read_features(options.get("features", "none"), spec.config);
    spec.score_mod = options.get("score_mod", "none");
    spec.config.score_mod = linked_score_mod(spec.score_mod, table::is_cuda(spec.isa));
    spec.config.wide_group = spec.schedule == "wide";
    spec.config.for_whole_keys = spec.schedule == "whole";
    if (table::is_cuda(spec.isa)) {
        fit_cuda_tiles(spec.isa, spec.config);
        if (const std::string error = cuda_error(spec.isa, spec.config); !error.empty()) throw BadInput(error);
        return spec;
    }
    // A cache has more than 2^31 elements; of a mask that is broadcast over heads and batch the extents' product does.
    spec.target = target_of_isa(spec.isa).with_feature(Target::LargeBuffers);
    spec.config.bf16_dots = has_bf16_dots(spec.isa);
    spec.config.bf16_tiles = spec.isa == "amx";
    if (const std::string extra = options.get("extra_features", "none"); extra != "none") {
        spec.target = Target(spec.target.to_string() + "-" + extra);
    }
    Machine machine = machine_of(spec.target);
    if (options.has("l2_bytes")) machine.l2_bytes = options.number("l2_bytes");
    fit_tiles(machine, spec.config);
    spec.config.carries_reference = is_for_x86(spec);
    read_parameters(options, spec.config);
    for (const std::string &error : {spec.config.error(), spec.config.block_error()}) {
        if (!error.empty()) throw BadInput(error);
    }
    return spec;
}

Passes schedule(const AttentionSpec &spec, AttentionKernel &kernel, Halide::Pipeline &pipeline) {
    if (spec.schedule == "default") return schedule_attention_default(kernel.stages, spec.config);
    if (is_for_x86(spec)) {
        const bool row_lanes = spec.config.rows_are_lanes();
        return (row_lanes ? schedule_attention_prefill_x86 : schedule_attention_decode_x86)(kernel.stages, spec.config);
    }
    apply_autoscheduler(spec.schedule, kernel, pipeline, spec.target);
    Passes passes;
    add_attention_passes(&passes, spec.config, {});
    return passes;
}

// Bytes that a task takes, and as in Kernel kept_bytes and loops_before.
struct TaskNeeds {
    int64_t scratch = 0, kept = 0;
    int loops_before = 0;
};

std::string registry_line(const AttentionSpec &spec, const TaskNeeds &needs, int64_t code_bytes) {
    const AttentionConfig &c = spec.config;
    std::ostringstream line;
    uint32_t features = 0;
#define HEED_ADD_BIT(name, bit) features |= c.has_##name ? uint32_t{feature_##name} : 0;
    HEED_FEATURES(HEED_ADD_BIT)
#undef HEED_ADD_BIT
    line << "HEED_KERNEL(" << spec.name << ", " << (c.phase == Phase::prefill ? "prefill" : "decode") << ", "
         << name_of(c.dtype) << ", " << name_of(c.kv_dtype) << ", " << c.head_dim << ", " << c.head_dim_v << ", "
         << features << ", " << (c.paged ? "paged" : "contiguous") << ", " << spec.isa << ", " << c.row_block << ", "
         << c.kv_block << ", " << needs.scratch << ", \"" << spec.schedule << "\", "
         << score_mod_fields(spec.score_mod, spec.config.score_mod) << ", " << attention_arguments_hash << "u, "
         << c.packed_bytes() << ", " << c.task_blocks << ", " << needs.kept << ", " << needs.loops_before << ", "
         << (is_for_x86(spec) && c.asks_for_rows()) << ", " << code_bytes << ")\n";
    return line.str();
}

void generate_on_cuda(const AttentionSpec &spec, Options &options, const std::string &base) {
    const cuda::Toolkit toolkit = read_toolkit(options, spec.isa);
    options.refuse_unknown();
    const auto make = [&](const Halide::Module &module, int threads, int blocks, int shared_bytes) {
        const cuda::RewriteOptions rewrite = {capability_of(spec.isa), threads, blocks, spec.isa == "sm90"};
        const cuda::DeviceBinary binary = cuda::assemble(module, rewrite, toolkit, base);
        write_cuda_kernel(binary, shared_bytes, base);
        write_registry_line(registry_line(spec, {}, binary.image_bytes), base);
    };
    if (is_of_cores(spec.isa)) {
        const AttentionForm form = attention_form_cuda(spec.config);
        make(attention_cores_cuda(spec.name, spec.config, cuda_target()), form.threads(), form.blocks,
             attention_cores_shared_bytes(spec.config));
        return;
    }
    make(attention_tensor_cuda(spec.name, spec.config, cuda_target()),
         attention_tensor_threads(attention_tensor_tile(spec.config)), attention_tensor_blocks(spec.config),
         attention_tensor_shared_bytes(spec.config));
}

}  // namespace

void generate_attention(Options &options) {
    const AttentionSpec spec = spec_of(options);
    const bool on_cuda = table::is_cuda(spec.isa);
    if (!on_cuda && options.choice("parameters", "none", {"none", "list"}) == "list") {
        options.refuse_unknown();
        std::puts(describe_parameters(spec.config).c_str());
        return;
    }
    const std::string base = options.get("out") + "/" + spec.name;
    if (on_cuda) return generate_on_cuda(spec, options, base);
    const std::set<std::string> more = options.set_of("write", {"stmt", "assembly"});
    options.refuse_unknown();

    AttentionKernel kernel(spec.config);
    Halide::Pipeline pipeline = kernel.pipeline();
    const Passes passes = schedule(spec, kernel, pipeline);
    passes.add_to(pipeline);
    const AttentionStages &stages = kernel.stages;
    const bool packs = spec.config.packs_first();
    ScratchBytes scratch(stages.kept, packs ? stages.out.name() + ".s1." + stages.results.y.name() : "");
    pipeline.add_custom_lowering_pass(&scratch, [] {});
    const Halide::Module module = pipeline.compile_to_module(kernel.arguments(), spec.name, spec.target);
    check_outputs(module, kernel.output_types());
    passes.check();
    const int64_t code_bytes = write_module(module, more, base, spec.config.bf16_tiles && spec.config.packs_first());
    const int64_t task_scratch = is_for_x86(spec) ? scratch.per_task() : -1;
    write_registry_line(registry_line(spec, {task_scratch, scratch.kept_bytes(), scratch.loops_before()}, code_bytes),
                        base);
}

}  // namespace heed
