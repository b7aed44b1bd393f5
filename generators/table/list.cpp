#include "generators/table/list.h"

#include <cstdio>
#include <cstring>

#include "generators/common/bad_input.h"
#include "generators/contract/operations.h"
#include "generators/table/call.h"
#include "generators/table/request.h"

namespace heed::table {

namespace {

const Words phases = {"prefill", "decode"}, dtypes = {f32, f16, bf16}, kv_dtypes = {f32, f16, bf16, i8};

void list_kernels(const Words &words, Listing &listing) {
    const Call call(words, {"PHASES", "DTYPES", "HEAD_DIMS", "FEATURES", "ISAS", "OPS"}, {"SCORE_MOD", "TUNED"});
    call.require({"DTYPES", "ISAS"});
    const bool only_ops = !call.list("OPS").empty() && call.list("PHASES").empty() && call.list("HEAD_DIMS").empty();
    if (!only_ops) call.require({"PHASES", "HEAD_DIMS"});
    call.allow("PHASES", phases);
    call.allow("DTYPES", dtypes);
    call.allow("ISAS", all_isas());
    // Every kernel has those up to window; the next two choose storage and type of the keys.
    Words features = {"causal", "lse", "sinks", "varlen", "window", "paged", "int8"}, ops, logits;
    for (const std::string &name : feature_names()) {
        features.push_back(name);
        if (name != "gqa" && contains(call.list("FEATURES"), name)) logits.push_back(name);
    }
    call.allow("FEATURES", features);
    for (const OpChoice &choice : op_choices) ops.emplace_back(choice.name);
    call.allow("OPS", ops);
    call.check_head_dims("HEAD_DIMS", call.list("ISAS"));
    list_request({call.list("PHASES"), call.list("DTYPES"), call.list("HEAD_DIMS"), call.list("ISAS"), call.list("OPS"),
                  logits, contains(call.list("FEATURES"), "paged"), contains(call.list("FEATURES"), "int8"),
                  call.score_mod()},
                 listing);
}

void list_attention_kernels(const Words &words, Listing &listing) {
    const Call call(words, {"PHASE", "DTYPE", "HEAD_DIM", "FEATURES", "STORAGE", "ISA"},
                    {"KV_DTYPE", "SCHEDULE", "EXTRA_FEATURES", "SCORE_MOD"});
    call.require({"PHASE", "HEAD_DIM", "ISA"});
    call.allow("PHASE", phases);
    call.allow("DTYPE", dtypes);
    call.allow("KV_DTYPE", kv_dtypes);
    call.allow("STORAGE", {"contiguous", "paged"});
    call.allow("ISA", all_isas());
    call.allow("SCHEDULE", {"x86", "default", "Mullapudi2016", "Adams2019", "cuda", "wide", "whole"});
    call.check_head_dims("HEAD_DIM", call.list("ISA"));
    call.check_features(call.list("PHASE"));
    for_each_of({call.list("ISA"), call.list("PHASE"), call.list("DTYPE", f32), call.list("HEAD_DIM"),
                 call.list("FEATURES", "none"), call.list("STORAGE", "contiguous")},
                [&](const Words &of) {
                    const bool widens = call.value("KV_DTYPE") == f32 && of[2] != f32;
                    if (widens && !(of[1] == "prefill" && of[5] == "contiguous" && computes_in_floats(of[0]))) {
                        call.refuse("KV_DTYPE f32 with DTYPE " + of[2] +
                                    " is not allowed but with PHASE prefill, STORAGE contiguous, ISA avx2 or avx512");
                    }
                    listing.add_attention({of[1], of[2], call.value("KV_DTYPE"), of[3], of[0],
                                           of[4] == "none" ? Words() : split(of[4], '_'), of[5], call.value("SCHEDULE"),
                                           call.value("EXTRA_FEATURES"), call.score_mod()});
                });
}

void list_op_kernels(const Words &words, Listing &listing) {
    const Call call(words, {"OP", "DTYPE", "ISA", "ROWS", "HEAD_DIM"}, {"KV_DTYPE", "EXTRA_FEATURES", "SCORE_MOD"});
    call.require({"OP", "DTYPE", "ISA"});
    call.allow("OP", operation_names());
    for_each_of(
        {call.list("ISA"), call.list("OP"), call.list("DTYPE"), call.list("ROWS", "0"), call.list("HEAD_DIM", "0")},
        [&](const Words &of) {
            const OpKernel kernel = {of[1], of[2], call.value("KV_DTYPE"), of[3], of[4], of[0]};
            if (const std::string error = op_kernel_error(kernel); !error.empty()) call.refuse(error);
            if (!call.score_mod().empty() && !may_have_score_mod(operation_of(kernel.op), is_cuda(kernel.isa))) {
                call.refuse("SCORE_MOD is not allowed with OP " + kernel.op + ", ISA " + kernel.isa);
            }
            listing.add_operation(kernel, call.value("EXTRA_FEATURES"), call.score_mod());
        });
}

void list_all_operations(const Words &words, Listing &listing) {
    const Call call(words, {}, {});
    for (const OpKernel &kernel : all_op_kernels()) listing.add_operation(kernel);
}

void check_library(const Words &words, Listing &) {
    const Call call(words, {"ISAS", "EXCLUDE"}, {}, "EXCLUDE");
    call.allow("ISAS", all_isas());
}

std::string list_of(const Words &words) {
    if (words[0] == "cpu_isas") return joined(cpu_isas(), "\n") + "\n";
    const std::pair<const char *, void (*)(const Words &, Listing &)> functions[] = {
        {"heed_add_kernels", list_kernels},         {"heed_add_attention_kernels", list_attention_kernels},
        {"heed_add_op_kernels", list_op_kernels},   {"heed_add_all_operations", list_all_operations},
        {"heed_add_kernel_library", check_library},
    };
    Words names;
    for (const auto &[name, list] : functions) {
        names.emplace_back(name);
        if (words[0] != name) continue;
        Listing listing;
        list(words, listing);
        return listing.text();
    }
    throw BadInput("list = '" + words[0] + "' is not allowed: cpu_isas, " + joined(names, ", "));
}

}  // namespace

}  // namespace heed::table

namespace heed {

bool is_asked_for_list(int argc, char **argv) { return argc > 1 && std::strncmp(argv[1], "list=", 5) == 0; }

int print_list(int argc, char **argv) {
    table::Words words(argv + 1, argv + argc);
    words[0] = words[0].substr(5);
    try {
        std::fputs(table::list_of(words).c_str(), stdout);
        return 0;
    } catch (const BadInput &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}

}  // namespace heed
