#include "generators/lowering/carried.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const char *const carried_name = "heed_carried";

}  // namespace

Expr carried(const Expr &row, const Expr &step) {
    return Call::make(Float(32), carried_name, {row, step}, Call::PureExtern);
}

Expr LoadCarried::visit(const Call *op) {
    if (op->name != carried_name) return IRMutator::visit(op);
    const Expr row = mutate(op->args[0]);
    return Load::make(op->type, buffer, simplify(row + make_const(row.type(), first)), Buffer<>(), Parameter(),
                      const_true(row.type().lanes()), ModulusRemainder());
}

}  // namespace heed
