#include "generators/lowering/keep_awake.h"

#include <algorithm>

#include "generators/common/serial_loop.h"
#include "generators/lowering/tile_block.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

Stmt KeepAwake::visit(const For *op) {
    const auto found_loop =
        std::find_if(loops.begin(), loops.end(), [op](const Loop &of) { return of.name == op->name; });
    if (found_loop == loops.end()) return IRMutator::visit(op);
    found++;
    const Expr iteration = Variable::make(Int(32), op->name) - op->min;
    const Stmt product = IfThenElse::make(iteration % found_loop->every == 0, product_of_zeros());
    return with_body(op, Block::make(product, mutate(op->body)));
}

}  // namespace heed
