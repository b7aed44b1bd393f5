#include "generators/lowering/prefetch_rows.h"

#include <algorithm>
#include <sstream>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

class VectorsOfInputs : public IRVisitor {
public:
    std::vector<const Load *> loads;

private:
    using IRVisitor::visit;
    void visit(const Load *op) override {
        if (op->index.as<Ramp>() != nullptr) loads.push_back(op);
        IRVisitor::visit(op);
    }
    void visit(const Let *op) override { op->value.accept(this); }  // its name does not reach the prefetch
};

// Turns an index of a key into that of a later one.
class LaterKeys : public IRMutator {
public:
    explicit LaterKeys(const PrefetchRows::Ahead &ahead) : ahead(ahead) {}

private:
    using IRMutator::visit;
    const PrefetchRows::Ahead &ahead;
    Expr visit(const Load *op) override {
        if (op->name.rfind(ahead.table, 0) != 0) return IRMutator::visit(op);
        const Expr keys = make_const(op->index.type(), ahead.keys);
        return Load::make(op->type, op->name, op->index + keys, op->image, op->param, op->predicate,
                          ModulusRemainder());
    }
};

// The constant that a sum of integers has.
int64_t constant_in(const Expr &e) {
    if (const auto *sum = e.as<Add>()) return constant_in(sum->a) + constant_in(sum->b);
    if (const auto *cast = e.as<Cast>()) return constant_in(cast->value);
    const auto *constant = e.as<IntImm>();
    return constant != nullptr ? constant->value : 0;
}

// The first one of several vectors in a line. Rows start with one.
bool starts_line(const Load *load) {
    return constant_in(load->index.as<Ramp>()->base) * load->type.bytes() % line_bytes == 0;
}

}  // namespace

Stmt PrefetchRows::visit(const For *op) {
    const bool outside = in_loop;
    in_loop = std::any_of(loops.begin(), loops.end(),
                          [&](const std::string &loop) { return op->name.find(loop) != std::string::npos; });
    seen.clear();
    known.clear();
    Stmt result = IRMutator::visit(op);
    in_loop = outside;
    return result;
}

Stmt PrefetchRows::visit(const LetStmt *op) {
    if (in_loop) known[op->name] = substitute(known, op->value);
    Stmt result = LetStmt::make(op->name, op->value, mutate(op->body));
    return in_loop ? with_prefetches(op->value, result) : result;
}

Stmt PrefetchRows::visit(const Store *op) { return in_loop ? with_prefetches(op->value, op) : op; }

Stmt PrefetchRows::with_prefetches(const Expr &value, Stmt result) {
    VectorsOfInputs inputs;
    value.accept(&inputs);
    for (const Load *load : inputs.loads) {
        std::ostringstream line;
        line << load->name << substitute(known, load->index);
        if (!starts_line(load) || !seen.insert(line.str()).second) continue;
        for (const Ahead &next : ahead) {
            if (next.input != load->name) continue;
            Expr index = load->index.as<Ramp>()->base;
            if (next.keys > 0) {
                const Expr later = LaterKeys(next).mutate(index);
                index = next.same_keys.defined() ? select(next.same_keys, index, later) : later;
            }
            const Expr byte = cast<int64_t>(index + next.distance) * load->type.bytes();
            result = Block::make(prefetch_line(next.rows, byte, next.wanted), result);
        }
    }
    return result;
}

}  // namespace heed
