#pragma once
// Lowering pass: a task asks for rows while it multiplies. In a burst many of them would not arrive: a core drops what
// its buffers for lines on their way cannot hold (Zen 5: a quarter of 384 lines; of 8 lines every 90 ns none).
//
//   for step { if .. { ..; for key { .. }; .. } }     for other step { ..; for key { .. }; .. }
//
// becomes
//
//   if there is no step of either loop, all rows
//   for step { if .. { ..; for key { ..; a share of the rows }; .. } else the shares of all its keys }
//   for other step { ..; for key { ..; a share of the rows, if the first loop has no step }; .. }

#include <map>
#include <string>
#include <vector>

#include "Halide.h"
#include "generators/lowering/row_lines.h"

namespace heed {

class AskRows : public Halide::Internal::IRMutator {
public:
    // Of what `produced` names. The first loop over steps that has one asks, in its loop over keys. `askers`: loops,
    // after those, that ask by themselves where they have a step.
    struct Loops {
        struct Steps {
            std::string steps, keys;
        };
        std::string produced;
        std::vector<Steps> in_order;
        std::vector<std::string> askers;
    };
    AskRows(Loops loops, std::vector<RowLines> rows) : names(std::move(loops)), rows(std::move(rows)) {}

    int found = 0;  // loops over keys that ask

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::IfThenElse *op) override;

private:
    const Loops names;
    const std::vector<RowLines> rows;
    std::map<std::string, Halide::Expr> asks_in;        // whether a loop over steps does
    const Halide::Internal::For *steps_loop = nullptr;  // at hand
    std::string keys_loop;                              // of it
};

}  // namespace heed
