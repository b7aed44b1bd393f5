#pragma once
// The stages of a step of a loop over blocks of keys, taken apart: for passes that mix their loops.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "Halide.h"

namespace heed {

// What a loop's body does, in its order: stages, each whole, and what consumes them, without a name; and the arrays
// that it allocates, in registers, which live as long as the body.
struct StepStages {
    std::vector<const Halide::Internal::Allocate *> arrays;
    std::vector<std::pair<std::string, Halide::Internal::Stmt>> in_order;

    explicit StepStages(const Halide::Internal::Stmt &body);

    const Halide::Internal::Stmt &of(const std::string &name) const;
    const Halide::Internal::Allocate &array(const std::string &name) const;

private:
    Halide::Internal::Stmt body;

    void add(const Halide::Internal::Stmt &stmt);
};

// A stage as what it does before its loop over the keys, and the loop; what follows the loop is not part of it.
struct KeyLoop {
    std::vector<Halide::Internal::Stmt> before;
    const Halide::Internal::For *loop = nullptr;

    explicit KeyLoop(const Halide::Internal::Stmt &stage);

private:
    Halide::Internal::Stmt stage;

    void add(const Halide::Internal::Stmt &stmt);
};

int constant(const Halide::Expr &value);

// The iterations of a loop from `first` on, `count` of them.
Halide::Internal::Stmt part_of(const Halide::Internal::For *loop, const Halide::Expr &first, const Halide::Expr &count);

// Loads of an array become a value.
class ReadAs : public Halide::Internal::IRMutator {
public:
    ReadAs(std::string array, Halide::Expr value) : array(std::move(array)), value(std::move(value)) {}

private:
    using IRMutator::visit;
    const std::string array;
    const Halide::Expr value;

    Halide::Expr visit(const Halide::Internal::Load *op) override;
};

// An array that another one takes the place of, at an index that `place` makes of the first one's.
class ReplaceArray : public Halide::Internal::IRMutator {
public:
    using Place = std::function<Halide::Expr(const Halide::Expr &index)>;
    ReplaceArray(std::string array, std::string by, Place place)
        : array(std::move(array)), by(std::move(by)), place(std::move(place)) {}

private:
    using IRMutator::visit;
    const std::string array, by;
    const Place place;

    Halide::Expr placed(const Halide::Expr &index);
    Halide::Expr visit(const Halide::Internal::Load *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;
};

// Loads of what a stage stores, of vectors by its loop over keys, become the values; their places are numbers of the
// loop.
class InlineStage : public Halide::Internal::IRMutator {
public:
    InlineStage(std::string array, const Halide::Internal::Stmt &stage);

private:
    using IRMutator::visit;
    const std::string array;
    const Halide::Internal::Stmt stage;
    std::string key;
    int elements_of_key = 0;
    std::vector<const Halide::Internal::Store *> stores;

    Halide::Expr visit(const Halide::Internal::Load *op) override;
};

// Names of a statement resolved.
Halide::Internal::Stmt without_lets(const Halide::Internal::Stmt &stmt);

// The stores of a stage to an array, in their order; the stage must live.
std::vector<const Halide::Internal::Store *> stores_to(const std::string &array, const Halide::Internal::Stmt &stage);

}  // namespace heed
