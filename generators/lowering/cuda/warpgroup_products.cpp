#include "generators/lowering/cuda/warpgroup_products.h"

#include "generators/common/array_names.h"
#include "generators/common/bad_input.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/warpgroup.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

constexpr int of_chunk = 8;  // elements of 16 bytes

Stmt run(const Expr &call) { return Evaluate::make(call); }

// Products of one group or two; the thread goes on once the first one has ended.
Stmt multiplied(const std::vector<WarpgroupProduct> &products) {
    std::vector<Stmt> all;
    for (const WarpgroupProduct &product : products) all.push_back(product.before);
    all.push_back(run(cuda::begin_products()));
    for (const WarpgroupProduct &product : products) {
        all.push_back(product.begin);
        all.push_back(run(cuda::commit_products()));
    }
    all.push_back(run(cuda::wait_products(static_cast<int>(products.size()) - 1)));
    all.push_back(products[0].after);
    return Block::make(all);
}

}  // namespace

Stmt StoreInPanels::visit(const Allocate *op) {
    const auto row = rows.find(func_of_array(op->name));
    if (row != rows.end() && is_shared_array(op)) {
        arrays[op->name] = {row->second, static_cast<int>(op->constant_allocation_size()) / row->second};
        found++;
    }
    return IRMutator::visit(op);
}

Stmt StoreInPanels::visit(const Store *op) {
    const auto panels = arrays.find(op->name);
    if (panels == arrays.end()) return IRMutator::visit(op);
    const auto *ramp = op->index.as<Ramp>();
    if (ramp == nullptr || !is_const_one(ramp->stride) || ramp->lanes != of_chunk) {
        throw BadInput("what is stored in panels of " + op->name + " is no chunk of 16 bytes");
    }
    const auto &[of_row, number] = panels->second;
    const Expr row = ramp->base / of_row, chunk = ramp->base % of_row / of_chunk;
    const Expr to = simplify(cuda::chunk_in_panels(simplify(row), simplify(chunk), number));
    return Store::make(op->name, op->value, Ramp::make(to * of_chunk, 1, of_chunk), op->param, op->predicate, {});
}

int LowerWarpgroupProducts::rows_of(const std::string &array) const {
    const auto found = rows.find(func_of_array(array));
    if (found == rows.end()) throw BadInput(array + " is not in panels");
    return found->second;
}

Stmt LowerWarpgroupProducts::visit(const Allocate *op) {
    if (is_shared_array(op)) shared.insert(op->name);
    return IRMutator::visit(op);
}

Stmt LowerWarpgroupProducts::visit(const LetStmt *op) {
    lets.add(op->name, op->value);
    return IRMutator::visit(op);
}

Stmt LowerWarpgroupProducts::visit(const Store *op) {
    if (is_const_zero(op->value)) cleared.insert(op->name);
    return op;
}

Stmt LowerWarpgroupProducts::visit(const ProducerConsumer *op) {
    if (op->name != begun_together) return IRMutator::visit(op);
    const ScopedValue<bool> both(together, true);
    return mutate(op->body);
}

Stmt LowerWarpgroupProducts::visit(const For *op) {
    ProductNest nest;
    if (!nest.read(op, lets, shared)) return IRMutator::visit(op);
    const bool is_of_scores = nest.a_in_registers == Type();
    if (is_of_scores && cleared.erase(nest.store->name) == 0) {
        throw BadInput("scores of warpgroups in " + nest.store->name + " do not begin with 0");
    }
    found++;
    if (is_of_scores) {
        const WarpgroupProduct product = scores_of_warpgroups(nest, rows_of(nest.a), rows_of(nest.b), threads);
        used_up = together ? Expr() : product.b;
        return together ? multiplied({product, waiting}) : multiplied({product});
    }
    WarpgroupProduct product = sums_of_warpgroups(nest, rows_of(nest.b), used_up, threads);
    if (!together) return multiplied({product});
    waiting = product;
    waiting.before = Evaluate::make(0);
    return product.before;
}

// PrivateRegisters numbers them by rows, then columns; a fragment has two neighbours of each of two rows.
int NamedSums::number_of(const Expr &index) const {
    const auto place = as_const_int(index);
    if (!place) throw BadInput("the number of a register of " + array + " is not constant");
    const int in_row = static_cast<int>(*place) % (count / 2), row = static_cast<int>(*place) / (count / 2);
    return in_row / 2 * 4 + row * 2 + in_row % 2;
}

Stmt NamedSums::visit(const Allocate *op) {
    if (func_of_array(op->name) != func || op->memory_type != MemoryType::Register) return IRMutator::visit(op);
    found++;
    array = op->name;
    count = static_cast<int>(op->constant_allocation_size());
    return mutate(op->body);
}

Stmt NamedSums::visit(const Free *op) { return op->name == array ? Evaluate::make(0) : Stmt(op); }

Stmt NamedSums::visit(const Store *op) {
    if (op->name != array) return IRMutator::visit(op);
    return Evaluate::make(cuda::set_sum(number_of(op->index), mutate(op->value)));
}

Expr NamedSums::visit(const Load *op) {
    return op->name == array ? cuda::sum(number_of(op->index)) : IRMutator::visit(op);
}

}  // namespace heed
