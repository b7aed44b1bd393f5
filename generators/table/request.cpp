#include "generators/table/request.h"

#include "generators/contract/operations.h"

namespace heed::table {

namespace {

bool are_multiples(const std::string &head_dim, int unit) {
    const Words dims = split(head_dim, 'x');
    return std::all_of(dims.begin(), dims.end(), [=](const std::string &dim) { return std::stoi(dim) % unit == 0; });
}

// Dot products of bf16 are in kernels for head dims of whole chunks, in prefill for any. In decode a row of keys is
// read in place, by whole vectors of pairs.
bool has_whole_chunks(const AttentionKernel &kernel) {
    const bool is_prefill = kernel.phase == "prefill";
    if (kernel.head_dim == "any") return is_prefill;
    return are_multiples(kernel.head_dim, 16) && (is_prefill || are_multiples(split(kernel.head_dim, 'x').front(), 32));
}

// Matrix tiles of a group are in kernels for such head dims and for any.
bool has_whole_tiles(const AttentionKernel &kernel) {
    return kernel.head_dim == "any" || are_multiples(kernel.head_dim, 16);
}

// Products of warpgroups are in prefill for head dims that are known, without dropout or a score function.
bool has_warpgroup_form(const AttentionKernel &kernel, const Words &features) {
    return kernel.phase == "prefill" && kernel.dtype != f32 && kernel.kv_dtype.empty() && kernel.head_dim != "any" &&
           kernel.score_mod.empty() && has_whole_chunks(kernel) && !contains(features, "dropout");
}

// Whose kernel serves the ISA. Dot products of bf16 exist in kernels of bf16 keys, without dropout; those of tiles in
// prefill, for any head dim, and in decode in the wide form.
std::string serving_isa(const AttentionKernel &kernel, const Words &features) {
    if (is_cuda(kernel.isa) && kernel.isa != sm75 && kernel.dtype == f32) return sm75;
    if (kernel.isa != avx512bf16 && kernel.isa != amx) return kernel.isa;
    if (kernel.dtype != bf16 || !kernel.kv_dtype.empty() || contains(features, "dropout")) return avx512;
    if (kernel.isa == amx && kernel.phase == "prefill") return amx;
    return has_whole_chunks(kernel) ? avx512bf16 : avx512;
}

// Kernels of the CPU that convert each block of keys anyway, and all of int8 keys, serve every storage by their paged
// form.
Words storages(const AttentionKernel &kernel, bool paged) {
    const bool converts = kernel.phase == "prefill" && kernel.dtype != f32 && !is_cuda(kernel.isa);
    if (converts || !kernel.kv_dtype.empty()) return {"paged"};
    return paged ? Words{"contiguous", "paged"} : Words{"contiguous"};
}

// For groups of 16 heads and more, with AMX of 8. CUDA: 32 rows of a tile. AMX: in pages, which serve every storage.
bool has_wide_form(const AttentionKernel &kernel) {
    if (kernel.phase != "decode" || kernel.features != Words{"gqa"} || !kernel.score_mod.empty()) return false;
    const bool in_floats = computes_in_floats(kernel.isa) && kernel.dtype == f32;
    const bool on_cpu = in_floats || kernel.isa == avx512bf16 || kernel.isa == amx;
    if (!kernel.kv_dtype.empty()) return kernel.isa == sm80 && contains({"64", "96", "128"}, kernel.head_dim);
    return on_cpu || (kernel.isa == sm80 && contains({"64", "80", "96", "128"}, kernel.head_dim));
}

// For keys of many heads, which leave the caches (schedules/machine.cpp).
bool has_whole_form(const AttentionKernel &kernel) {
    const bool is_plain = kernel.features.empty() || kernel.features == Words{"gqa"};
    return kernel.phase == "decode" && is_plain && kernel.isa == avx512 && kernel.dtype == f32 &&
           kernel.kv_dtype.empty() && kernel.score_mod.empty() && kernel.storage == "contiguous" &&
           contains({"64", "96", "128", "256"}, kernel.head_dim);
}

// The kernels with `logits` at the logits.
void add_kernels(AttentionKernel kernel, const Words &logits, bool paged, Listing &listing) {
    const bool by_tiles =
        kernel.isa == amx && kernel.dtype == bf16 && kernel.kv_dtype.empty() && has_whole_tiles(kernel);
    kernel.isa = serving_isa(kernel, logits);
    const std::string isa = kernel.isa;
    if (isa == amx && !has_whole_chunks(kernel)) kernel.head_dim = "any";
    for (const bool gqa : {false, true}) {
        if (gqa && kernel.phase == "prefill") continue;
        // Kernels with something at the logits, and those of CUDA, work on the heads of a group at once, or on one.
        if (!gqa && kernel.phase == "decode" && (!logits.empty() || is_cuda(kernel.isa))) continue;
        kernel.features = logits;
        if (gqa) kernel.features.emplace_back("gqa");
        std::sort(kernel.features.begin(), kernel.features.end());
        for (const std::string &storage : storages(kernel, paged)) {
            kernel.storage = storage;
            if (isa == sm90) kernel.isa = has_warpgroup_form(kernel, logits) ? sm90 : sm80;
            kernel.schedule = "";
            listing.add_attention(kernel);
            AttentionKernel wide = kernel;
            wide.schedule = "wide";
            if (by_tiles) {
                wide.isa = amx;
                wide.storage = "paged";
            }
            if (has_wide_form(wide)) listing.add_attention(wide);
            kernel.schedule = "whole";
            if (has_whole_form(kernel)) listing.add_attention(kernel);
        }
    }
}

// Prefill of 16-bit numbers in floats: kernels that read copies of heads, widened once.
void add_kernels_of_copies(AttentionKernel kernel, Listing &listing) {
    kernel.isa = serving_isa(kernel, {});
    if (kernel.phase != "prefill" || kernel.dtype == f32 || !kernel.kv_dtype.empty()) return;
    if (!computes_in_floats(kernel.isa)) return;
    kernel.kv_dtype = f32;
    kernel.storage = "contiguous";
    listing.add_attention(kernel);
}

// The kernels of one shape: without anything at the logits, and with all that is asked for; general ones with dot
// products, which have no dropout, also with all of the others.
void add_variants(const AttentionKernel &kernel, const Request &request, Listing &listing) {
    Words without_dropout = request.logits;
    without_dropout.erase(std::remove(without_dropout.begin(), without_dropout.end(), "dropout"),
                          without_dropout.end());
    add_kernels(kernel, {}, request.paged, listing);
    add_kernels_of_copies(kernel, listing);
    const std::string isa = serving_isa(kernel, without_dropout);
    if (kernel.head_dim == "any" && (isa == avx512bf16 || isa == amx)) {
        add_kernels(kernel, without_dropout, request.paged, listing);
    }
    add_kernels(kernel, request.logits, request.paged, listing);
}

void add_operation(const std::string &op, const std::string &isa, const std::string &dtype, const Request &request,
                   Listing &listing) {
    const Op number = operation_of(op);
    const bool scored = may_have_score_mod(number, is_cuda(isa));
    // Plain kernels serve no call with a score function.
    const bool is_plain = number == Op::attention_backward_keys_plain || number == Op::attention_backward_queries_plain;
    if (is_plain && !request.score_mod.empty()) return;
    for (const std::string keys : {"", i8}) {
        if (keys == i8 && op == op_name(Op::attention_probs) && !request.int8) continue;
        for (const OpKernel &kernel : serving_op_kernels(op, isa, dtype, keys)) {
            listing.add_operation(kernel, "", scored ? request.score_mod : "");
        }
    }
    // Gradients of 16-bit layers may be added up in floats.
    if (op == op_name(Op::add) && dtype != f32 && !is_cuda(isa)) add_operation(op, isa, f32, request, listing);
}

// An operation, or a word for several, and what it brings along.
void add_choice(const std::string &name, const std::string &isa, const std::string &dtype, const Request &request,
                Listing &listing) {
    add_operation(name, isa, dtype, request, listing);
    for (const OpChoice &choice : op_choices) {
        if (name != choice.name) continue;
        for (const Op op : choice.brings) add_choice(op_name(op), isa, dtype, request, listing);
    }
}

}  // namespace

void list_request(const Request &request, Listing &listing) {
    for (const std::string &isa : request.isas) {
        for (const std::string &dtype : request.dtypes) {
            for_each_of({request.phases, request.head_dims}, [&](const Words &of) {
                AttentionKernel kernel = {of[0], dtype, "", of[1], isa, {}, "", "", "", request.score_mod};
                add_variants(kernel, request, listing);
                kernel.kv_dtype = i8;
                if (request.int8) add_variants(kernel, request, listing);
            });
            for (const std::string &op : request.ops) add_choice(op, isa, dtype, request, listing);
        }
    }
}

}  // namespace heed::table
