#pragma once
// Lowering pass: two loops with the same iterations become one.
//
//   produce first { for x: .. }  produce second { start; for x: .. first .. }
//
// becomes
//
//   produce first { start; for x: ..; .. first .. }
//
// An iteration of the second stage reads of the first one only what the same iteration has written, and finds it in
// registers or in its cache. In Halide a stage inside a loop is stored there, where no later loop can read it.

#include <string>
#include <utility>

#include "Halide.h"

namespace heed {

class FuseLoops : public Halide::Internal::IRMutator {
public:
    // Buffers, each computed by one loop, or by one after a few stores; the second is allocated after the first one.
    // What comes after its loop may only free arrays.
    FuseLoops(std::string first, std::string second) : first(std::move(first)), second(std::move(second)) {}

    int found = 0;

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;

private:
    const std::string first, second;
};

}  // namespace heed
