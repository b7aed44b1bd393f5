#pragma once
// The part of the driver that joins the operations around attention with their schedules.

#include <string>

#include "Halide.h"

namespace heed {

struct OpRow {
    std::string name, op, dtype, kv_dtype, isa;
    Halide::Target target;

    // Why such a row cannot exist; empty when it can.
    std::string error() const;
    // The line of the registry.
    std::string registry_line() const;
};

Halide::Module compile_op(const OpRow &row);

}  // namespace heed
