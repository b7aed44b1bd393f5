#pragma once
// A list of kernels: a line for each, the arguments that heed_generate makes it of.

#include <set>
#include <string>

#include "generators/table/operations.h"

namespace heed::table {

// What a kernel of attention is made of; strings that are empty are not said.
struct AttentionKernel {
    std::string phase, dtype, kv_dtype, head_dim, isa;
    Words features;  // sorted
    std::string storage, schedule, extra_features, score_mod;
};

class Listing {
public:
    // On CUDA also the operations that its metadata and its splits need.
    void add_attention(const AttentionKernel &kernel);
    void add_operation(const OpKernel &kernel, const std::string &extra_features = "",
                       const std::string &score_mod = "");

    std::string text() const { return lines; }

private:
    void add(const std::string &name, const std::string &arguments);

    std::string lines;
    std::set<std::string> names;
};

}  // namespace heed::table
