#pragma once
// The arrays that a statement or an expression reads, and those that it stores to.

#include <set>
#include <string>

#include "Halide.h"

namespace heed {

class AccessedArrays : public Halide::Internal::IRVisitor {
public:
    std::set<std::string> read, stored;

private:
    using IRVisitor::visit;
    void visit(const Halide::Internal::Load *op) override {
        read.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const Halide::Internal::Store *op) override {
        stored.insert(op->name);
        IRVisitor::visit(op);
    }
};

template <typename T>
AccessedArrays accesses_in(const T &what) {
    AccessedArrays all;
    what.accept(&all);
    return all;
}

}  // namespace heed
