#pragma once
// Lowering pass: stages that Halide makes under a test whether something reads them are made without it.
//
// Where a specialization reads one stage and the others read another one, Halide (skip_stages) guards each of them by a
// flag of its own, inside the branch that has decided already. Stages in registers then go through memory: a bias of
// 1024 x 1024 floats for 16 heads of 128 on a Xeon with AMX took 1.12 times the time.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class DropTests : public Halide::Internal::IRMutator {
public:
    // stages: by the beginnings of their names; wherever one is made, something must read it.
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
