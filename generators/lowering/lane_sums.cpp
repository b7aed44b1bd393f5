#include "generators/lowering/lane_sums.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const char *const sum_name = "heed_lane_sum";

Expr scalar_sum(std::vector<Expr> values) {
    for (size_t half = values.size() / 2; half >= 1; half /= 2) {
        for (size_t i = 0; i < half; i++) values[i] = values[i] + values[i + half];
    }
    return values[0];
}

// Row `key` of a square of values is in `buffer` from first + key * stride on.
struct Square {
    int lanes;
    std::string buffer;
    Expr first, stride;

    Expr row(int key) const {
        Expr elements = Ramp::make(simplify(first + key * stride), make_one(first.type()), lanes);
        return Load::make(Float(32, lanes), buffer, elements, Buffer<>(), Parameter(), const_true(lanes),
                          ModulusRemainder());
    }

    // A vector that holds `left` partial sums of each of lanes / left rows, `key` the first of them. The steps between
    // rows that meet make lane i of the last vector the sum of row i.
    Expr partial_sums(int key, int left) const {
        if (left == lanes) return row(key);
        const int step = left >= 4 ? lanes / left * 2 : 2 / left;
        const std::string a = unique_name("a"), b = unique_name("b");
        Expr x = Variable::make(Float(32, lanes), a), y = Variable::make(Float(32, lanes), b);
        Expr sum = halves(x, y, left, 0) + halves(x, y, left, left);
        sum = Let::make(b, partial_sums(key + step, 2 * left), sum);
        return Let::make(a, partial_sums(key, 2 * left), sum);
    }

    // For each group of 2 * left elements the half that starts at `from`; x and y take turns in units of 128 bits, or
    // follow each other where a group is larger.
    Expr halves(const Expr &x, const Expr &y, int left, int from) const {
        const int unit = left >= 4 ? lanes : 4;
        std::vector<int> indices;
        for (int start = 0; start < lanes; start += unit) {
            for (int side : {0, lanes}) {
                for (int i = start; i < start + unit; i++) {
                    if (i % (2 * left) / left == from / left) indices.push_back(side + i);
                }
            }
        }
        return Shuffle::make({x, y}, indices);
    }
};

// Operand i must start i elements after operand 0.
Square square_of(const std::vector<Expr> &operands) {
    Square square;
    square.lanes = static_cast<int>(operands.size());
    for (int i = 0; i < square.lanes; i++) {
        const Load *load = operands[i].as<Load>();
        const Ramp *index = load != nullptr ? load->index.as<Ramp>() : nullptr;
        if (i == 0 && index != nullptr) {
            square.buffer = load->name;
            square.first = index->base;
            square.stride = index->stride;
        }
        if (index == nullptr || index->lanes != square.lanes || load->name != square.buffer ||
            !can_prove(index->base == square.first + i) || !can_prove(index->stride == square.stride)) {
            throw CompileError("lane_sum of values that are not side by side");
        }
    }
    return square;
}

}  // namespace

Expr lane_sum(const std::vector<Expr> &values) { return Call::make(Float(32), sum_name, values, Call::PureExtern); }

Expr LowerLaneSums::visit(const Call *op) {
    if (op->name != sum_name) return IRMutator::visit(op);
    std::vector<Expr> operands;
    for (const Expr &arg : op->args) operands.push_back(mutate(arg));
    return op->type.is_scalar() ? scalar_sum(operands) : square_of(operands).partial_sums(0, 1);
}

}  // namespace heed
