#include "generators/table/listing.h"

namespace heed::table {

namespace {

std::string said(const std::string &before, const std::string &value) { return value.empty() ? "" : before + value; }

}  // namespace

// Several ISAs may be served by one kernel.
void Listing::add(const std::string &name, const std::string &arguments) {
    if (names.insert(name).second) lines += "name=" + name + " " + arguments + "\n";
}

void Listing::add_attention(const AttentionKernel &k) {
    Words needed;
    if (is_cuda(k.isa)) needed = {"write_metadata", "sequences"};
    if (is_cuda(k.isa) && k.phase == "decode") needed.emplace_back("merge_splits");
    for (const std::string &op : needed) {
        for (const OpKernel &kernel : serving_op_kernels(op, k.isa, k.dtype, "")) add_operation(kernel);
    }
    const std::string features = joined(k.features, "_");
    const Words dims = split(k.head_dim, 'x');
    add("attention_" + k.phase + "_" + k.dtype + said("_kv", k.kv_dtype) + "_d" + k.head_dim + said("_", features) +
            said("_score_", k.score_mod) + "_" + k.storage + "_" + k.isa + said("_", k.schedule),
        "phase=" + k.phase + " dtype=" + k.dtype + " head_dim=" + dims.front() + " head_dim_v=" + dims.back() +
            " features=" + (features.empty() ? "none" : features) + " storage=" + k.storage + " isa=" + k.isa +
            said(" kv_dtype=", k.kv_dtype) + said(" score_mod=", k.score_mod) + said(" schedule=", k.schedule) +
            said(" extra_features=", k.extra_features));
}

void Listing::add_operation(const OpKernel &k, const std::string &extra_features, const std::string &score_mod) {
    const bool has_head_dim = k.head_dim != "0";
    add(k.op + "_" + k.dtype + said("_kv", k.kv_dtype) + said("_score_", score_mod) +
            (k.rows != "0" ? "_r" + k.rows : "") + (has_head_dim ? "_d" + k.head_dim : "") + "_" + k.isa,
        "op=" + k.op + " dtype=" + k.dtype + said(" kv_dtype=", k.kv_dtype) + said(" extra_features=", extra_features) +
            said(" score_mod=", score_mod) + (has_head_dim ? " head_dim=" + k.head_dim : " rows=" + k.rows) +
            " isa=" + k.isa);
}

}  // namespace heed::table
