#pragma once
// Lowering pass: stages that Halide makes under a test whether something reads them are made without it.
//
// Where a specialization reads one stage and the others read another one, Halide (skip_stages) guards each of them by a
// flag of its own, inside the branch that has decided already. Stages in registers then go through memory.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class DropTests : public Halide::Internal::IRMutator {
public:
    // stages: by the beginnings of their names.
    explicit DropTests(std::vector<std::string> stages) : stages(std::move(stages)) {}

    int found = 0;

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::IfThenElse *op) override;

private:
    const std::vector<std::string> stages;

    bool is_one(const std::string &name) const;
};

}  // namespace heed
