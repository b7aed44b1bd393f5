#pragma once
// A loop that a pass makes.

#include <string>

#include "Halide.h"

namespace heed {

inline Halide::Internal::Stmt serial_loop(const std::string &name, const Halide::Expr &min, const Halide::Expr &extent,
                                          const Halide::Internal::Stmt &body) {
    using namespace Halide::Internal;
    return For::make(name, min, extent, ForType::Serial, Halide::Partition::Never, Halide::DeviceAPI::None, body);
}

}  // namespace heed
