#include "generators/lowering/cuda/tile_products.h"

#include "generators/common/bad_input.h"
#include "generators/lowering/cuda/fragment_product.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// Whether threads of a block may disagree on a condition: not on what a vote of all of them says.
bool differs_in_block(const Expr &condition) {
    struct Find : IRVisitor {
        bool found = false;
        using IRVisitor::visit;
        void visit(const Variable *op) override { found = found || op->name == thread_variable; }
        void visit(const Call *op) override {
            if (op->name != "heed_barrier_any") IRVisitor::visit(op);
        }
    } find;
    condition.accept(&find);
    return find.found;
}

}  // namespace

Stmt LowerTileProducts::visit(const Allocate *op) {
    if (is_shared_array(op)) shared.insert(op->name);
    return IRMutator::visit(op);
}

Stmt LowerTileProducts::visit(const LetStmt *op) {
    lets.add(op->name, op->value);
    return IRMutator::visit(op);
}

Stmt LowerTileProducts::visit(const IfThenElse *op) {
    const ScopedValue<bool> outer(in_some_threads, in_some_threads || differs_in_block(lets.in_full(op->condition)));
    return IRMutator::visit(op);
}

Stmt LowerTileProducts::visit(const For *op) {
    ProductNest nest;
    if (!nest.read(op, lets, shared)) return IRMutator::visit(op);
    if (in_some_threads) throw BadInput("a product of tensor cores is computed by some threads of a block only");
    found++;
    return fragment_product(nest, threads);
}

}  // namespace heed
