#pragma once
// A buffer argument as device code sees it: an address and strides, which the host side of the kernel reads from the
// buffer and passes as parameters of the launch.

#include <string>

#include "Halide.h"

namespace heed::cuda {

struct DeviceTensor {
    std::string name;  // of the argument
    int dimensions;

    Halide::Expr address() const { return Halide::Internal::Variable::make(Halide::UInt(64), name + ".address"); }
    Halide::Expr extent(int i) const { return field("extent", i); }
    Halide::Expr stride(int i) const { return field("stride", i); }  // in elements

    // Defines all of the above around `body`, a host statement.
    Halide::Internal::Stmt define(const Halide::Internal::Stmt &body) const;

private:
    Halide::Expr field(const char *which, int i) const {
        return Halide::Internal::Variable::make(Halide::Int(32), name + ".device_" + which + "." + std::to_string(i));
    }
};

}  // namespace heed::cuda
