#pragma once
// Lowering pass, before PipelineTiles: tasks whose steps are not pipelined ask for rows, too.
//
//   for step { ..; for key { .. }; .. }     for next step { .. }
//
// becomes
//
//   if there is neither of both steps, all rows
//   for step { ..; for key { ..; in the last step, if there is no next one, a share of the rows }; .. }
//   for next step { .. }
//
// The next steps are those of loops that ask themselves; other loops over steps may follow.

#include <string>
#include <utility>
#include <vector>

#include "Halide.h"
#include "generators/lowering/row_lines.h"

namespace heed {

class AskRows : public Halide::Internal::IRMutator {
public:
    // produced: what the loops over steps produce.
    struct Loops {
        std::string produced, steps, keys;
        std::vector<std::string> next_steps;
    };
    AskRows(Loops loops, std::vector<RowLines> rows) : names(std::move(loops)), rows(std::move(rows)) {}

    int found = 0;  // loops over keys that ask

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    const Loops names;
    const std::vector<RowLines> rows;
    Halide::Expr no_next, is_last;
};

}  // namespace heed
