#pragma once
// Lowering pass: a loop asks for memory that is needed after it, a few lines in each iteration.
//
// A block of packed operands is in a few pages of its own. The prefetchers of the cache follow no page's end, so that
// the first tile of a new block waits for L3: 3.7 times the time of the others (Xeon, AVX-512, one core, 256 steps of
// 32 columns). Asked for in a burst, its lines occupy the buffers that the loads of the loop need: spread over the
// iterations before they cost nothing measurable. Halide's own prefetch is such a burst.

#include <functional>
#include <string>
#include <vector>

#include "Halide.h"
#include "generators/lowering/prefetch_line.h"

namespace heed {

class SpreadPrefetches : public Halide::Internal::IRMutator {
public:
    // Lines [iteration * lines, (iteration + 1) * lines), as far as they are below `total`, in each iteration. An
    // undefined total: all of them, `lines` being a constant.
    struct Stream {
        std::string buffer;
        int element_bytes;
        std::function<Halide::Expr(const Halide::Expr &)> element;  // Int(64), of a line, Int(32)
        Halide::Expr lines, total;                                  // Int(32)
        Wanted wanted = Wanted::in_l2;
    };

    // For loops whose name ends with `loop`, inside loops of all the names of `inside`. Where `when` is defined there
    // are two loops, and the one with prefetches runs when it is true.
    SpreadPrefetches(std::string loop, std::vector<std::string> inside, std::vector<Stream> streams,
                     Halide::Expr when = {})
        : loop(std::move(loop)), inside(std::move(inside)), streams(std::move(streams)), when(std::move(when)) {}

    int found = 0;

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    const std::string loop;
    const std::vector<std::string> inside;
    const std::vector<Stream> streams;
    const Halide::Expr when;
    std::vector<std::string> around;  // names of loops

    bool is_inside() const;
};

}  // namespace heed
