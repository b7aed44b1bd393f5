#pragma once
// Lowering pass: two loops over the same tasks become one.
//
//   produce first { parallel task: .. }  produce second { parallel task: .. first .. }
//
// becomes
//
//   produce first { parallel task: ..; .. first .. }
//
// A task of the second stage reads of the first one only what the same task has written, and finds it in its cache. In
// Halide a stage inside a parallel loop is stored there, where no later loop can read it.

#include <string>
#include <utility>

#include "Halide.h"

namespace heed {

class FuseTasks : public Halide::Internal::IRMutator {
public:
    // Buffers computed at root, each by one parallel loop; the second is allocated after the first one.
    FuseTasks(std::string first, std::string second) : first(std::move(first)), second(std::move(second)) {}

    int found = 0;

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;

private:
    const std::string first, second;
};

}  // namespace heed
