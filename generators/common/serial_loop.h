#pragma once
// Loops and sequences that passes make.

#include <string>

#include "Halide.h"

namespace heed {

inline Halide::Internal::Stmt serial_loop(const std::string &name, const Halide::Expr &min, const Halide::Expr &extent,
                                          const Halide::Internal::Stmt &body) {
    using namespace Halide::Internal;
    return For::make(name, min, extent, ForType::Serial, Halide::Partition::Never, Halide::DeviceAPI::None, body);
}

// The loop with another body.
inline Halide::Internal::Stmt with_body(const Halide::Internal::For *loop, const Halide::Internal::Stmt &body) {
    return Halide::Internal::For::make(loop->name, loop->min, loop->extent, loop->for_type, loop->partition_policy,
                                       loop->device_api, body);
}

inline Halide::Internal::Stmt joined(const Halide::Internal::Stmt &first, const Halide::Internal::Stmt &rest) {
    using namespace Halide::Internal;
    return is_no_op(first) ? rest : is_no_op(rest) ? first : Block::make(first, rest);
}

}  // namespace heed
