#include "generators/lowering/cuda/place_over.h"

#include "generators/common/array_names.h"
#include "generators/common/bad_input.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// Whether an array is accessed after another one, or both are in a loop.
class AccessedAfter : public IRVisitor {
public:
    bool found = false;

    AccessedAfter(const Stmt &kernel, const std::string &other, const std::string &array) : other(other), array(array) {
        kernel.accept(this);
    }

private:
    const std::string &other, &array;
    int of_other = 0, of_array = 0;  // accesses so far

    void access(const std::string &name) {
        of_array += name == array ? 1 : 0;
        of_other += name == other ? 1 : 0;
        found = found || (name == other && of_array > 0);
    }
    using IRVisitor::visit;
    void visit(const Load *op) override {
        IRVisitor::visit(op);
        access(op->name);
    }
    void visit(const Store *op) override {
        IRVisitor::visit(op);
        access(op->name);
    }
    void visit(const Call *op) override {
        IRVisitor::visit(op);
        if (is_shared_address(op)) access(op->args[0].as<StringImm>()->value);
    }
    void visit(const For *op) override {
        const int others = of_other, arrays = of_array;
        IRVisitor::visit(op);
        const bool repeats = op->for_type == ForType::Serial;
        found = found || (repeats && of_other > others && of_array > arrays);
    }
};

int64_t size_of_array(const Allocate *op) { return op->constant_allocation_size() * op->type.bytes(); }

}  // namespace

Stmt PlaceOver::visit(const For *op) {
    if (op->for_type == ForType::GPUBlock) {
        array = name_of_array(op, array);
        over = name_of_array(op, over);
        const bool is_before = when == When::before_copies;
        const std::string &earlier = is_before ? array : over, &later = is_before ? over : array;
        const bool is_used_up = !AccessedAfter(op, earlier, later).found;
        if (!is_used_up) throw BadInput(earlier + " is not used up where " + later + " begins");
        struct Find : IRVisitor {
            const std::string &name;
            int64_t bytes = 0;
            explicit Find(const std::string &name) : name(name) {}
            using IRVisitor::visit;
            void visit(const Allocate *op) override {
                if (op->name == name && is_shared_array(op)) bytes = size_of_array(op);
                IRVisitor::visit(op);
            }
        } find(over);
        op->accept(&find);
        first = is_before ? find.bytes / 2 : 0;
        bytes = find.bytes - first;
    }
    return IRMutator::visit(op);
}

Stmt PlaceOver::visit(const Allocate *op) {
    if (op->name != array) return IRMutator::visit(op);
    if (!is_shared_array(op) || size_of_array(op) == 0 || size_of_array(op) > bytes) {
        throw BadInput(array + " does not fit in the place of " + over);
    }
    found++;
    return mutate(op->body);
}

Stmt PlaceOver::visit(const Free *op) { return op->name == array ? Evaluate::make(0) : Stmt(op); }

// An element's, in the other array.
Expr PlaceOver::moved(const Expr &index, const Type &type) const {
    const Expr begin = make_const(Int(32), first / type.bytes());
    if (const auto *ramp = index.as<Ramp>()) return Ramp::make(ramp->base + begin, ramp->stride, ramp->lanes);
    return simplify(index + begin);
}

Stmt PlaceOver::visit(const Store *op) {
    if (op->name != array) return IRMutator::visit(op);
    const Expr index = moved(mutate(op->index), op->value.type());
    return Store::make(over, mutate(op->value), index, op->param, op->predicate, op->alignment);
}

Expr PlaceOver::visit(const Load *op) {
    if (op->name != array) return IRMutator::visit(op);
    const Expr index = moved(mutate(op->index), op->type);
    return Load::make(op->type, over, index, op->image, op->param, op->predicate, op->alignment);
}

Expr PlaceOver::visit(const Call *op) {
    if (!is_shared_address(op) || op->args[0].as<StringImm>()->value != array) return IRMutator::visit(op);
    return shared_address(over, mutate(op->args[1]) + static_cast<int>(first));
}

}  // namespace heed
