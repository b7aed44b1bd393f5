// heed_generate: makes one row of the kernel table, or the Halide runtime that the rows share. The only place where
// what meets how.
//
//   heed_generate name=N phase=prefill|decode dtype=f32|f16|bf16 [kv_dtype=i8] head_dim=D|any [head_dim_v=D]
//                 [features=alibi_bias_dropout_gqa_mask_softcap] [storage=contiguous|paged] isa=I
//                 [schedule=x86|default|Mullapudi2016|Adams2019] [l2_bytes=N] [extra_features=asan,..] [score_mod=NAME]
//                 [parameters=list] [NAME=N ..] [write=..] out=DIR
//   heed_generate name=N op=attention_backward|attention_probs|dropout_mask|kv_append|kv_copy|merge_states|rope
//                 dtype=f32|f16|bf16|u8 [kv_dtype=i8] isa=I [write=..] out=DIR
//   heed_generate runtime=FILE.o
//
// isa=sm75 and sm80, CUDA compute capabilities, take [schedule=cuda|wide] ptxas=PROGRAM fatbinary=PROGRAM
// capabilities="80 90 .." besides.
//
// NAME=N, of rows of the CPU: a speed parameter instead of what the schedule chooses; parameters=list prints those of
// the row and makes nothing. l2_bytes: what the schedule takes a core's L2 for.
//
// Writes N.o, N.inc (the line of the registry) and, for CUDA, N.limits: registers, spills and shared memory by ptxas.
// write=LIST, joined by commas, asks for more: stmt (lowered code) and assembly (a third of the time again) for the
// CPU, ptx and cubin (N.sm_XX.cubin for each capability) for CUDA. Exit status 1 and a message on bad input or a
// warning of the compiler.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "attention_kernel.h"
#include "autoscheduler.h"
#include "bf16_dots.h"
#include "bf16_tiles.h"
#include "check_score_mod.h"
#include "cuda_row.h"
#include "keep_tiles.h"
#include "lane_sums.h"
#include "op_row.h"
#include "options.h"
#include "own_tanh.h"
#include "parameters.h"
#include "prefetch_rows.h"
#include "schedules.h"
#include "scratch_bytes.h"
#include "skip_blocks.h"
#include "trim_loops.h"

namespace heed {
namespace {

using Halide::OutputFileType;
using Halide::Target;

int head_dim_of(const std::string &text) {
    if (text == "any") {
        return 0;
    }
    size_t end = 0;
    const int value = text.find_first_not_of("0123456789") == std::string::npos ? std::stoi(text, &end) : -1;
    if (value < 1 || value > AttentionConfig::max_head_dim) {
        throw BadInput("head_dim = '" + text + "' is not allowed: 1..640, or any");
    }
    return value;
}

struct Row {
    std::string name, isa, schedule, score_mod;
    Target target;
    AttentionConfig config;
};

void read_features(const std::string &text, AttentionConfig &config) {
    std::istringstream features(text == "none" ? "" : text);
    for (std::string feature; std::getline(features, feature, '_');) {
        bool *const flag = feature == "alibi"                                  ? &config.has_alibi
                           : feature == "bias"                                 ? &config.has_bias
                           : feature == "dropout"                              ? &config.has_dropout
                           : feature == "mask"                                 ? &config.has_mask
                           : feature == "softcap"                              ? &config.has_softcap
                           : feature == "gqa" && config.phase == Phase::decode ? &config.packs_group
                                                                               : nullptr;
        if (flag == nullptr) {
            throw BadInput("features = '" + text +
                           "' is not allowed: none, or of alibi, bias, dropout, gqa (decode only), mask, softcap, "
                           "joined by _");
        }
        *flag = true;
    }
}

ElementType element_type(const std::string &name) {
    for (ElementType type : {ElementType::f16, ElementType::bf16, ElementType::i8}) {
        if (name == name_of(type)) return type;
    }
    return ElementType::f32;
}

// What the generator was linked with, which rows name exactly when it is there.
ScoreMod own_score_mod(const std::string &name, bool on_cuda) {
    try {
        const ScoreMod mod = score_mod();
        const bool empty = !mod.logit && !mod.visible && !mod.block_visible;
        if (empty != (name == "none")) {
            throw BadInput(empty ? "heed::score_mod() sets none of ScoreMod's logit, visible and block_visible"
                                 : "rows of this generator must name it");
        }
        check_score_mod(mod, on_cuda);
        return with_own_tanh(mod);
    } catch (const std::exception &error) {
        throw BadInput("score_mod = '" + name + "' is not allowed: " + error.what());
    }
}

Row row_of(Options &options) {
    Row row;
    row.name = options.get("name");
    const std::string dtype = options.choice("dtype", "f32", {"f32", "f16", "bf16"});
    row.config.dtype = element_type(dtype);
    row.config.kv_dtype = element_type(options.choice("kv_dtype", dtype, {dtype, "i8"}));
    row.config.paged = options.choice("storage", "contiguous", {"contiguous", "paged"}) == "paged";
    row.isa = options.choice("isa", "", {"x86_64", "avx2", "avx512", "avx512bf16", "amx", "sm75", "sm80"});
    row.schedule = is_cuda_isa(row.isa) ? options.choice("schedule", "cuda", {"cuda", "wide"})
                   : has_bf16_dots(row.isa)
                       ? options.choice("schedule", "x86", {"x86"})
                       : options.choice("schedule", "x86", {"x86", "default", "Mullapudi2016", "Adams2019"});
    row.config.phase = options.choice("phase", "", {"prefill", "decode"}) == "prefill" ? Phase::prefill : Phase::decode;
    row.config.head_dim = head_dim_of(options.get("head_dim"));
    row.config.head_dim_v = head_dim_of(options.get("head_dim_v", options.get("head_dim")));
    read_features(options.get("features", "none"), row.config);
    row.score_mod = options.get("score_mod", "none");
    row.config.score_mod = own_score_mod(row.score_mod, is_cuda_isa(row.isa));
    if (is_cuda_isa(row.isa)) {
        row.config.wide_group = row.schedule == "wide";
        fit_cuda_tiles(row.isa, row.config);
        if (const std::string error = cuda_error(row.isa, row.config); !error.empty()) throw BadInput(error);
        return row;
    }
    row.target = target_of_isa(row.isa);
    row.config.bf16_dots = has_bf16_dots(row.isa);
    row.config.bf16_tiles = row.isa == "amx";
    if (row.config.per_logit()) {
        // A mask broadcast over heads and batch has few elements but extents whose product passes 2^31.
        row.target.set_feature(Target::LargeBuffers);
    }
    if (const std::string extra = options.get("extra_features", "none"); extra != "none") {
        row.target = Target(row.target.to_string() + "-" + extra);
    }
    Machine machine = machine_of(row.target);
    if (options.has("l2_bytes")) machine.l2_bytes = options.number("l2_bytes");
    fit_tiles(machine, row.config);
    read_parameters(options, row.config);
    for (const std::string &error : {row.config.error(), row.config.block_error()}) {
        if (!error.empty()) throw BadInput(error);
    }
    return row;
}

void schedule(const Row &row, AttentionKernel &kernel, Halide::Pipeline &pipeline) {
    if (row.schedule == "default") {
        schedule_attention_default(kernel.stages, row.config);
    } else if (row.schedule != "x86") {
        apply_autoscheduler(row.schedule, kernel, pipeline, row.target);
    } else if (row.config.phase == Phase::prefill) {
        schedule_attention_prefill_x86(kernel.stages, row.config);
    } else {
        schedule_attention_decode_x86(kernel.stages, row.config);
    }
}

// Its name, "" for none, and a letter for the type of each buffer.
std::string score_mod_fields(const Row &row) {
    std::string types;
    for (const ScoreElement element : row.config.score_mod.buffers) types += element == ScoreElement::f32 ? 'f' : 'i';
    return "\"" + (row.config.has_score_mod() ? row.score_mod : "") + "\", \"" + types + "\"";
}

void write_registry_line(const Row &row, int64_t scratch, const std::string &path) {
    const AttentionConfig &c = row.config;
    std::ofstream file(path);
    const int features = (c.has_bias ? 1 : 0) + (c.has_mask ? 2 : 0) + (c.packs_group ? 4 : 0) +
                         (c.has_softcap ? 8 : 0) + (c.has_alibi ? 16 : 0) + (c.has_dropout ? 32 : 0);
    file << "HEED_KERNEL(" << row.name << ", " << (c.phase == Phase::prefill ? "prefill" : "decode") << ", "
         << name_of(c.dtype) << ", " << name_of(c.kv_dtype) << ", " << c.head_dim << ", " << c.head_dim_v << ", "
         << features << ", " << (c.paged ? "paged" : "contiguous") << ", " << row.isa << ", " << c.row_block << ", "
         << c.kv_block << ", " << scratch << ", \"" << row.schedule << "\", " << score_mod_fields(row) << ")\n";
    if (!file.flush()) {
        throw BadInput("cannot write " + path);
    }
}

void write_module(const Halide::Module &module, const std::set<std::string> &more, const std::string &base) {
    std::map<OutputFileType, std::string> files = {{OutputFileType::object, base + ".o"}};
    if (more.count("stmt") != 0) files[OutputFileType::stmt] = base + ".stmt";
    if (more.count("assembly") != 0) files[OutputFileType::assembly] = base + ".s";
    module.compile(files);
}

void generate_op(Options &options) {
    OpRow row;
    row.name = options.get("name");
    row.op = options.choice("op", "",
                            {"add",
                             "attention_backward",
                             "attention_backward_bias",
                             "attention_backward_keys",
                             "attention_backward_queries",
                             "attention_backward_sinks",
                             "attention_backward_stats",
                             "attention_probs",
                             "clip",
                             "clip_gradient",
                             "column_sums",
                             "copy_rows",
                             "dropout_mask",
                             "key_padding",
                             "kv_append",
                             "kv_copy",
                             "layer_norm",
                             "layer_norm_gradient",
                             "linear",
                             "linear_rows",
                             "merge_splits",
                             "merge_states",
                             "put_words",
                             "rope",
                             "sequences",
                             "transpose"});
    row.rows = std::stoi(
        options.choice("rows", "0", {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "16", "32"}));
    row.head_dim = std::stoi(options.choice("head_dim", "0", {"0", "64", "128", "256"}));
    row.dtype = options.choice("dtype", "", {"f32", "f16", "bf16", "u8", "i32"});
    row.kv_dtype = options.get("kv_dtype", row.dtype);
    row.isa = options.choice("isa", "", {"x86_64", "avx2", "avx512", "avx512bf16", "amx", "sm75", "sm80"});
    // Tables and caches may pass 2^31 elements; the runtime keeps strides below.
    row.target = target_of_isa(row.isa).with_feature(Target::LargeBuffers);
    if (const std::string extra = options.get("extra_features", "none"); extra != "none") {
        row.target = Target(row.target.to_string() + "-" + extra);
    }
    const std::string base = options.get("out") + "/" + row.name;
    if (const std::string error = row.error(); !error.empty()) {
        throw BadInput(error);
    }
    if (is_cuda_isa(row.isa)) {
        generate_cuda_op(row.name, row.kernel(), row.isa, element_type(row.dtype), row.kv_dtype == "i8", options, base);
    } else {
        const std::set<std::string> more = options.set_of("write", {"stmt", "assembly"});
        options.refuse_unknown();
        write_module(compile_op(row), more, base);
    }
    std::ofstream file(base + ".inc");
    file << row.registry_line();
    if (!file.flush()) {
        throw BadInput("cannot write " + base + ".inc");
    }
}

void generate(Options &options) {
    const Row row = row_of(options);
    if (!is_cuda_isa(row.isa) && options.choice("parameters", "none", {"none", "list"}) == "list") {
        options.refuse_unknown();
        std::puts(describe_parameters(row.config).c_str());
        return;
    }
    const std::string base = options.get("out") + "/" + row.name;
    if (is_cuda_isa(row.isa)) {
        generate_cuda_attention(row.name, row.isa, row.config, options, base);
        write_registry_line(row, 0, base + ".inc");
        return;
    }
    const std::set<std::string> more = options.set_of("write", {"stmt", "assembly"});
    options.refuse_unknown();

    const bool tuned = row.schedule == "x86";
    AttentionKernel kernel(row.config);
    Halide::Pipeline pipeline = kernel.pipeline();
    schedule(row, kernel, pipeline);
    ScratchBytes scratch;
    TrimLoops trim_full("steps_full$y"), trim_masked("steps_masked$y");
    if (tuned) {
        pipeline.add_custom_lowering_pass(&trim_full, [] {});
        pipeline.add_custom_lowering_pass(&trim_masked, [] {});
    }
    SkipBlocks skip_blocks(tuned ? std::vector<std::string>{"steps_full$y", "steps_masked$y"}
                                 : std::vector<std::string>());
    if (row.config.score_mod.block_visible) pipeline.add_custom_lowering_pass(&skip_blocks, [] {});
    KeepTiles keep_tiles({"product", "value_tile"});
    if (tuned && row.config.phase == Phase::prefill && !row.config.bf16_tiles) {
        pipeline.add_custom_lowering_pass(&keep_tiles, [] {});
    }
    LowerBf16Tiles tiles;
    if (row.config.bf16_tiles) pipeline.add_custom_lowering_pass(&tiles, [] {});
    LowerBf16Dots dots;
    if (row.config.bf16_dots) pipeline.add_custom_lowering_pass(&dots, [] {});
    LowerLaneSums lane_sums;
    pipeline.add_custom_lowering_pass(&lane_sums, [] {});
    const Halide::Expr keys = kernel.prefetched_keys();
    PrefetchRows prefetch({"dots_full.s0.k", "value_tile_full.s1"},
                          {{"k", "k", keys * PrefetchRows::stride("k")}, {"v", "v", keys * PrefetchRows::stride("v")}});
    if (tuned && row.config.prefetch_keys > 0) pipeline.add_custom_lowering_pass(&prefetch, [] {});
    pipeline.add_custom_lowering_pass(&scratch, [] {});
    Halide::Module module = pipeline.compile_to_module(kernel.arguments(), row.name, row.target);
    if (tuned && (trim_full.trimmed != 1 || trim_masked.trimmed != 1)) {
        throw BadInput("of the loops over full and masked key blocks, " + std::to_string(trim_full.trimmed) + " and " +
                       std::to_string(trim_masked.trimmed) + " were trimmed; it must be 1 each");
    }
    if (row.config.bf16_tiles && (tiles.lowered != 4 || dots.lowered != 0)) {
        throw BadInput("of 4 products of bf16, " + std::to_string(tiles.lowered) + " became matrix tiles");
    }
    write_module(module, more, base);
    write_registry_line(row, tuned ? scratch.per_task() : -1, base + ".inc");
}

// A warning (a stage that no schedule names, a bound that cannot be proved) is an error, but for three: x86_64 has no
// instruction that converts f16, Halide's integer code does; autoschedulers do not know the cost of intrinsics that
// passes of ours replace; and of code for ThreadSanitizer Halide says that it may report what the schedules allow.
class StrictReporter : public Halide::CompileTimeErrorReporter {
public:
    void warning(const char *message) override {
        for (const char *const harmless :
             {"float16 type operation is emulated", "Unknown extern call heed_", "when run with ThreadSanitizer"}) {
            if (std::strstr(message, harmless) != nullptr) return;
        }
        throw BadInput(message);
    }
    void error(const char *message) override { throw BadInput(message); }
};

// Halide allocates millions of small nodes. A large cache of free ones in the thread and a heap that is not given back
// take a fifth of a kernel's time away. glibc reads this once, at the start of a process.
void tune_malloc(char **argv) {
    if (std::getenv("GLIBC_TUNABLES") != nullptr) return;
    setenv("GLIBC_TUNABLES",
           "glibc.malloc.tcache_count=60000:glibc.malloc.trim_threshold=2000000000:glibc.malloc.top_pad=100000000", 1);
    execv("/proc/self/exe", argv);  // returns where it fails: the kernel is made all the same
}

}  // namespace
}  // namespace heed

int main(int argc, char **argv) {
    heed::tune_malloc(argv);
    static heed::StrictReporter reporter;
    Halide::set_custom_compile_time_error_reporter(&reporter);
    try {
        heed::Options options(argc, argv);
        if (options.has("runtime")) {
            const std::string path = options.get("runtime");
            options.refuse_unknown();
            Halide::compile_standalone_runtime(path, Halide::Target("x86-64-linux-user_context"));
        } else if (options.has("op")) {
            heed::generate_op(options);
        } else {
            heed::generate(options);
        }
        return 0;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "heed_generate: %s\n", e.what());
        return 1;
    }
}
