#include "generators/lowering/varies_in.h"

#include <set>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

class Changes : public IRVisitor {
public:
    std::set<std::string> bound, written;

private:
    using IRVisitor::visit;
    void visit(const For *op) override {
        bound.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const LetStmt *op) override {
        bound.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const Let *op) override {
        bound.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const Allocate *op) override {
        written.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const Store *op) override {
        written.insert(op->name);
        IRVisitor::visit(op);
    }
};

class Varies : public IRVisitor {
public:
    explicit Varies(const Changes &changes) : changes(changes) {}
    bool result = false;

private:
    using IRVisitor::visit;
    const Changes &changes;
    void visit(const Variable *op) override { result = result || changes.bound.count(op->name) != 0; }
    void visit(const Load *op) override {
        result = result || changes.written.count(op->name) != 0;
        IRVisitor::visit(op);
    }
    void visit(const Call *op) override {
        result = result || !op->is_pure();
        IRVisitor::visit(op);
    }
};

}  // namespace

bool varies_in(const Stmt &body, const Expr &value) {
    Changes changes;
    body.accept(&changes);
    Varies varies(changes);
    value.accept(&varies);
    return varies.result;
}

}  // namespace heed
