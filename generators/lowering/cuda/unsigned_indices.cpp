#include "generators/lowering/cuda/unsigned_indices.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

Stmt UnsignedIndices::visit(const For *op) {
    const bool is_kernel = op->for_type == ForType::GPUBlock;
    kernels += is_kernel ? 1 : 0;
    Stmt result = IRMutator::visit(op);
    kernels -= is_kernel ? 1 : 0;
    return result;
}

Expr UnsignedIndices::visit(const Div *op) {
    if (kernels == 0 || op->type != Int(32) || is_const(op->b)) return IRMutator::visit(op);
    return cast<int32_t>(cast<uint32_t>(mutate(op->a)) / cast<uint32_t>(mutate(op->b)));
}

Expr UnsignedIndices::visit(const Mod *op) {
    if (kernels == 0 || op->type != Int(32) || is_const(op->b)) return IRMutator::visit(op);
    return cast<int32_t>(cast<uint32_t>(mutate(op->a)) % cast<uint32_t>(mutate(op->b)));
}

}  // namespace heed
