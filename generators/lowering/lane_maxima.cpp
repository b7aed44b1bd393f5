#include "generators/lowering/lane_maxima.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// Of a power of two of lanes.
Expr largest_of(const Expr &value) {
    const int lanes = value.type().lanes(), half = lanes / 2;
    if (lanes == 1) return value;
    const std::string name = unique_name("lanes");
    const Expr all = Variable::make(value.type(), name);
    const Expr low = Shuffle::make_slice(all, 0, 1, half), high = Shuffle::make_slice(all, half, 1, half);
    return Let::make(name, value, largest_of(max(low, high)));
}

bool is_power_of_two(int x) { return (x & (x - 1)) == 0; }

}  // namespace

Expr LowerLaneMaxima::visit(const VectorReduce *op) {
    const bool halves =
        op->op == VectorReduce::Max && op->type == Float(32) && is_power_of_two(op->value.type().lanes());
    return halves ? largest_of(mutate(op->value)) : IRMutator::visit(op);
}

}  // namespace heed
