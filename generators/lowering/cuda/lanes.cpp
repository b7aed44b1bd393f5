#include "generators/lowering/cuda/lanes.h"

#include "generators/common/bad_input.h"
#include "generators/cuda/intrinsics.h"
#include "generators/lowering/cuda/lets.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// The places that every iteration updates.
class Reductions : public IRVisitor {
public:
    explicit Reductions(std::string loop) : loop(std::move(loop)) {}

    struct Place {
        std::string name;
        Expr index;
        Type type;
        bool is_sum;
    };
    std::vector<Place> places;

private:
    const std::string loop;

    using IRVisitor::visit;
    void visit(const Store *op) override {
        if (expr_uses_var(op->index, loop)) return;
        const bool is_sum = op->value.as<Add>() != nullptr;
        if (!is_sum && op->value.as<Max>() == nullptr) {
            throw BadInput("lanes cannot share out a loop that updates " + op->name + " by no sum or maximum");
        }
        for (const Place &place : places) {
            if (place.name == op->name && equal(place.index, op->index)) return;
        }
        places.push_back({op->name, op->index, op->value.type(), is_sum});
    }
};

// Adds or compares the lanes' values. Every lane began with the place's own value, which must be 0 for a sum.
Stmt reduce(const Reductions::Place &place, int mask) {
    const Expr old = Load::make(place.type, place.name, place.index, Buffer<>(), Parameter(), const_true(), {});
    const std::string mine_name = unique_name("mine"), other_name = unique_name("other");
    const Expr mine = Variable::make(place.type, mine_name), other = Variable::make(place.type, other_name);
    const Expr moved = reinterpret(place.type, cuda::from_lane(reinterpret<float>(mine), mask));
    const Expr both = place.is_sum ? mine + other : max(mine, other);
    const Stmt store = Store::make(place.name, both, place.index, Parameter(), const_true(), {});
    return LetStmt::make(mine_name, old, LetStmt::make(other_name, moved, store));
}

}  // namespace

Stmt DistributeLanes::visit(const For *op) {
    if (!ends_with(op->name, "lanes")) return IRMutator::visit(op);
    if (op->for_type != ForType::Serial || !is_const_zero(op->min)) {
        throw BadInput("loop " + op->name + " is not one from 0 on for the lanes of a warp");
    }
    found++;
    Reductions reductions(op->name);
    op->body.accept(&reductions);
    const Expr lane = Variable::make(Int(32), thread_variable) % 32;
    Stmt result = substitute(op->name, lane, mutate(op->body));
    if (!is_const(op->extent, 32)) result = IfThenElse::make(lane < op->extent, result);
    for (const Reductions::Place &place : reductions.places) {
        for (const int mask : {1, 2, 4, 8, 16}) result = Block::make(result, reduce(place, mask));
    }
    return result;
}

}  // namespace heed
