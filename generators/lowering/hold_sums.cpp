#include "generators/lowering/hold_sums.h"

#include <algorithm>

#include "generators/common/serial_loop.h"
#include "generators/lowering/varies_in.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// Puts the vectors of an array into another one, in the order in which they are met.
class MoveVectors : public IRMutator {
public:
    MoveVectors(const std::string &from, const std::string &to) : from(from), to(to) {}

    std::vector<Expr> indices;
    Type type;

    Expr held(size_t n) const {
        return Ramp::make(make_const(Int(32), static_cast<int64_t>(n) * type.lanes()), make_const(Int(32), 1),
                          type.lanes());
    }

private:
    using IRMutator::visit;
    const std::string &from, &to;

    Expr place(const Expr &index, const Type &of) {
        const auto same = [&](const Expr &other) { return equal(other, index); };
        const auto at = std::find_if(indices.begin(), indices.end(), same);
        const auto n = static_cast<size_t>(at - indices.begin());
        if (at == indices.end()) indices.push_back(index);
        if (n == 0) type = of;
        if (type != of) throw CompileError("HoldSums: " + from + " is accessed in vectors of several types");
        return held(n);
    }
    Expr visit(const Load *op) override {
        if (op->name != from) return IRMutator::visit(op);
        return Load::make(op->type, to, place(op->index, op->type), Buffer<>(), Parameter(), op->predicate,
                          ModulusRemainder());
    }
    Stmt visit(const Store *op) override {
        if (op->name != from) return IRMutator::visit(op);
        Expr value = mutate(op->value);
        return Store::make(to, value, place(op->index, value.type()), Parameter(), op->predicate, ModulusRemainder());
    }
};

}  // namespace

Stmt HoldSums::visit(const For *op) {
    if (op->name.find(loop) == std::string::npos) return IRMutator::visit(op);
    found++;
    const std::string held = unique_name(array + "_held");
    MoveVectors move(array, held);
    Stmt result = with_body(op, move.mutate(op->body));
    const auto copy = [&](const std::string &to, const Expr &at, const std::string &from, const Expr &index) {
        Expr value = Load::make(move.type, from, index, Buffer<>(), Parameter(), const_true(move.type.lanes()),
                                ModulusRemainder());
        return Store::make(to, value, at, Parameter(), const_true(move.type.lanes()), ModulusRemainder());
    };
    for (size_t n = 0; n < move.indices.size(); n++) {
        const Expr &index = move.indices[n], place = move.held(n);
        if (varies_in(op->body, index)) {
            throw CompileError("HoldSums: the loop over " + op->name + " moves in " + array);
        }
        result = Block::make({copy(held, place, array, index), result, copy(array, index, held, place)});
    }
    const auto elements = static_cast<int>(move.indices.size()) * move.type.lanes();
    return Allocate::make(held, move.type.element_of(), MemoryType::Register, {Expr(elements)}, const_true(), result);
}

}  // namespace heed
