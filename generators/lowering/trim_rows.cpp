#include "generators/lowering/trim_rows.h"

#include <algorithm>
#include <utility>

#include "generators/common/serial_loop.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

using Remainders = Scope<ModulusRemainder>;

// What is known of an index whose value has a name.
ModulusRemainder remainder_of(const LetStmt *op, const Remainders &lets) {
    const bool is_index = op->value.type() == Int(32) || op->value.type() == Int(64);
    return is_index ? modulus_remainder(op->value, lets) : ModulusRemainder();
}

// Keeps the first `kept` vectors of a block.
class KeepVectors : public IRMutator {
public:
    KeepVectors(const TrimRows::Rows &rows, int kept, const Remainders &around) : rows(rows), kept(kept) {
        lets.set_containing_scope(&around);
    }

private:
    using IRMutator::visit;
    const TrimRows::Rows &rows;
    const int kept;
    Remainders lets;
    bool in_loop = false;  // over vectors or rows

    static bool is_one_of(const std::vector<std::string> &stages, const std::string &array) {
        return std::any_of(stages.begin(), stages.end(), [&](const std::string &stage) {
            return array == stage || array.rfind(stage + ".", 0) == 0;  // an element of a tuple, or a loop
        });
    }
    int vector_of(const Store *op) const {
        const auto *ramp = op->index.as<Ramp>();
        const ModulusRemainder first = ramp ? modulus_remainder(ramp->base, lets) : ModulusRemainder();
        if (!ramp || !is_const_one(ramp->stride) || ramp->lanes != rows.lanes || first.modulus % rows.block != 0) {
            throw CompileError("TrimRows: a store to " + op->name + " is of no known vector of rows");
        }
        return static_cast<int>(first.remainder % rows.block / rows.lanes);
    }
    Stmt visit(const Store *op) override {
        const bool stays = in_loop || !is_one_of(rows.stages, op->name);
        if (stays || (is_const(op->value) && is_one_of(rows.filled, op->name))) return op;
        return vector_of(op) < kept ? Stmt(op) : Evaluate::make(0);
    }
    Stmt visit(const LetStmt *op) override {
        const ScopedBinding<ModulusRemainder> binding(lets, op->name, remainder_of(op, lets));
        return IRMutator::visit(op);
    }
    Stmt visit(const For *op) override {
        const bool is_single =
            !rows.single.empty() && is_one_of(rows.stages, op->name) && ends_with(op->name, rows.single);
        const bool is_over_vectors = std::any_of(rows.loops.begin(), rows.loops.end(), [&](const std::string &loop) {
            return op->name == loop || ends_with(op->name, "." + loop);
        });
        const bool outer = std::exchange(in_loop, in_loop || is_single || is_over_vectors);
        Stmt loop = IRMutator::visit(op);
        in_loop = outer;
        if (!is_single) return loop;
        if (!is_const(op->extent, rows.block)) throw CompileError("TrimRows: " + op->name + " is over no rows");
        return For::make(op->name, op->min, kept * rows.lanes, op->for_type, op->partition_policy, op->device_api,
                         loop.as<For>()->body);
    }
};

}  // namespace

Stmt TrimRows::visit(const LetStmt *op) {
    const ScopedBinding<ModulusRemainder> binding(lets, op->name, remainder_of(op, lets));
    return IRMutator::visit(op);
}

Stmt TrimRows::visit(const For *op) {
    const bool is_step = std::any_of(steps.begin(), steps.end(),
                                     [&](const std::string &step) { return op->name.find(step) != std::string::npos; });
    if (!is_step) return IRMutator::visit(op);
    found++;
    Stmt body = op->body;
    for (int kept = rows.most_kept; kept > 0; kept--) {
        body = IfThenElse::make(rows.left > kept * rows.lanes, body, KeepVectors(rows, kept, lets).mutate(op->body));
    }
    return with_body(op, body);
}

}  // namespace heed
