#include "generators/lowering/carried.h"

#include "generators/common/array_names.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const char *const carried_name = "heed_carried", *const once_name = "heed_once";

}  // namespace

Expr carried(const Func &func, const Expr &row, const Expr &step) {
    return Call::make(Float(32), carried_name, {row, step, StringImm::make(func.name())}, Call::PureExtern);
}

Expr once(const Expr &value, const Expr &stage) {
    return Call::make(value.type(), once_name, {value, stage}, Call::PureExtern);
}

Expr LowerOnce::visit(const Call *op) { return op->name == once_name ? mutate(op->args[0]) : IRMutator::visit(op); }

Stmt LoadCarried::visit(const For *op) {
    if (op->for_type == ForType::GPUBlock) buffer = name_of_array(op, func);
    return LowerOnce::visit(op);
}

Expr LoadCarried::visit(const Call *op) {
    if (op->name != carried_name) return LowerOnce::visit(op);
    const auto *lanes = op->args[2].as<Broadcast>();
    const auto *name = (lanes != nullptr ? lanes->value : op->args[2]).as<StringImm>();
    if (name->value != func) return LowerOnce::visit(op);
    const Expr row = mutate(op->args[0]);
    return Load::make(op->type, buffer, simplify(row + make_const(row.type(), first)), Buffer<>(), Parameter(),
                      const_true(row.type().lanes()), ModulusRemainder());
}

}  // namespace heed
