#include "generators/lowering/wide_strides.h"

#include "generators/contract/attention_arguments.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// For a sum that 32 bits hold.
Expr widened(const Expr &x) {
    if (const Add *sum = x.as<Add>()) return widened(sum->a) + widened(sum->b);
    if (const Sub *difference = x.as<Sub>()) return widened(difference->a) - widened(difference->b);
    const Mul *product = x.as<Mul>();
    if (product != nullptr && is_const(product->b)) return widened(product->a) * widened(product->b);
    return cast(Int(64, x.type().lanes()), x);
}

}  // namespace

WideStrides::Names WideStrides::of_attention() {
    Names names;
#define HEED_NAME_STRIDE(argument, input, dim) names[#input ".stride." #dim] = #argument;
    HEED_WIDE_STRIDES(HEED_NAME_STRIDE)
#undef HEED_NAME_STRIDE
    return names;
}

Expr WideStrides::wide(const Expr &stride) const {
    if (const Broadcast *lanes = stride.as<Broadcast>()) {
        const Expr one = wide(lanes->value);
        return one.defined() ? Broadcast::make(one, lanes->lanes) : one;
    }
    const Variable *name = stride.as<Variable>();
    const auto found = name != nullptr ? arguments.find(name->name) : arguments.end();
    return found == arguments.end() ? Expr() : cast<int64_t>(Variable::make(UInt(64), found->second));
}

Expr WideStrides::visit(const Mul *op) {
    const Cast *index = op->a.as<Cast>(), *stride = op->b.as<Cast>();
    if (index == nullptr || stride == nullptr || !wide(stride->value).defined()) return IRMutator::visit(op);
    return widened(mutate(index->value)) * wide(stride->value);
}

Expr WideStrides::visit(const Call *op) {
    if (!op->is_intrinsic(Call::widening_mul)) return IRMutator::visit(op);
    for (size_t n = 0; n < 2; n++) {
        if (const Expr stride = wide(op->args[n]); stride.defined()) return widened(mutate(op->args[1 - n])) * stride;
    }
    return IRMutator::visit(op);
}

Expr WideStrides::visit(const Cast *op) {
    const Expr stride = op->type.element_of() == Int(64) ? wide(op->value) : Expr();
    return stride.defined() ? stride : IRMutator::visit(op);
}

Expr WideStrides::visit(const Variable *op) {
    found += static_cast<int>(arguments.count(op->name));
    return op;
}

}  // namespace heed
