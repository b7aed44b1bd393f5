#pragma once
// Accesses of arrays that have two buffers, of which a step of a loop uses one.

#include <map>
#include <set>
#include <string>

#include "Halide.h"

namespace heed {

class InBuffer : public Halide::Internal::IRMutator {
public:
    enum class Stores { move, refuse };

    std::set<std::string> read;  // arrays

    // sizes: elements of a buffer, by array.
    InBuffer(const std::map<std::string, int> &sizes, Halide::Expr buffer, Stores stores)
        : sizes(sizes), buffer(std::move(buffer)), stores(stores) {}

private:
    const std::map<std::string, int> &sizes;
    const Halide::Expr buffer;
    const Stores stores;

    Halide::Expr moved(const Halide::Expr &index, int size) const;

    using IRMutator::visit;
    Halide::Expr visit(const Halide::Internal::Load *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;
};

}  // namespace heed
