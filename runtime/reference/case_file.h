// A case: one safetensors file with an array per tensor, and the problem as JSON in its __metadata__ under
// "heed_problem". docs/reference/case-file.md is the contract; the meaning of the keys is that of heed_problem.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "heed/heed.h"
#include "runtime/reference/tensor_file.h"

namespace heed_reference {

// Axes of an array in order, a permutation of "bshd".
struct Layouts {
    std::string q = "bshd", k = "bshd", v = "bshd", out = "bshd";
};

struct Case {
    heed_problem problem;  // complete, strides of all tensors included; wants lse
    Layouts layouts;
    uint64_t dropout_seed = 0, dropout_offset = 0;
    std::map<std::string, Array> arrays;  // by name; integers as i32
    Array k_scale, v_scale;               // of int8 keys and values, in the API's order

    bool has(const std::string &name) const { return arrays.count(name) != 0; }
};

// Checks what makes the case consistent in itself; the rest is heed_plan_create's to refuse. Throws InvalidInput.
Case read_case(const std::filesystem::path &path);

// Fills in what the problem has from the arrays: dimensions, strides, features. The rest of `c` is set. Throws
// InvalidInput.
void complete_case(Case &c);

// Writes the problem and the arrays of `c`. Throws InvalidInput.
void write_case(const std::filesystem::path &path, const Case &c);

}  // namespace heed_reference
