#pragma once
// The part of the driver that joins the operations around attention with their schedules.

#include <string>

#include "Halide.h"

namespace heed {

struct OpRow {
    std::string name, op, dtype, kv_dtype, isa;
    int rows = 0;      // linear and linear_rows: of the register tile; others 0
    int head_dim = 0;  // attention_backward_keys and _queries: the largest; others 0
    Halide::Target target;

    // Why such a row cannot exist; empty when it can.
    std::string error() const;
    std::string kernel() const { return head_dim > 0 ? op + "_d" + std::to_string(head_dim) : op; }
    bool is_linear() const { return op == "linear" || op == "linear_rows"; }
    bool is_cuda_only() const;
    // The line of the registry.
    std::string registry_line() const;
};

Halide::Module compile_op(const OpRow &row);

}  // namespace heed
