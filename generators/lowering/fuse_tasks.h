#pragma once
// Lowering pass: two loops over the same tasks become one, as a task of the second stage reads of the first one what
// the same task has written. It finds that in its cache; Halide stores in a parallel loop what another one reads only
// where the loops are one Func's.

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
