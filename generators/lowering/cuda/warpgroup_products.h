#pragma once
// Products of tiles by warpgroups (cuda/warpgroup.h), of sm_90 alone: as LowerTileProducts, of the same nests.
//
// A product whose a is in shared memory makes scores, and overwrites c, which begins with 0. One whose a is in
// registers adds to sums: the array of c is in the registers of that name (NamedSums, after PrivateRegisters). Where a
// step has one of each, of which none depends on the other (DelayedStage), both are begun, and the thread goes on once
// the scores are there. The sums are under way then: who reads them waits before (PipelineCopies' delay).
//
// Arrays in shared memory are panels (cuda/warpgroup.h), in which StoreInPanels puts them. A row in them is a multiple
// of 64 elements. Terms that are left out, a being -0, are those of a step that is repeated (RepeatLoops): what of b is
// no number is counted in a product of its own, in the place of the matrix of which the step's scores were made, and is
// 0 in shared memory after that.

#include "Halide.h"
#include "generators/lowering/cuda/lets.h"
#include "generators/lowering/cuda/warpgroup_product.h"

namespace heed {

// Statements of which the first one begins sums and the second one scores.
inline const char *const begun_together = "heed_begun_together";

class StoreInPanels : public Halide::Internal::IRMutator {
public:
    // By the name of the Func whose copies they are: elements of a row.
    explicit StoreInPanels(std::map<std::string, int> rows) : rows(std::move(rows)) {}
    int found = 0;  // arrays

private:
    const std::map<std::string, int> rows;
    struct Panels {
        int row, rows;
    };
    std::map<std::string, Panels> arrays;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;
};

class LowerWarpgroupProducts : public Halide::Internal::IRMutator {
public:
    // rows: of the matrices, by the name of their Func; threads: of a block.
    LowerWarpgroupProducts(std::map<std::string, int> rows, int threads) : rows(std::move(rows)), threads(threads) {}
    int found = 0;  // nests

private:
    const std::map<std::string, int> rows;
    const int threads;
    std::set<std::string> shared;   // arrays
    std::set<std::string> cleared;  // arrays in which 0 is stored
    Lets lets;
    bool together = false;
    WarpgroupProduct waiting;  // for the one that is begun together with it
    Halide::Expr used_up;      // where the second matrix of the step's scores is

    int rows_of(const std::string &array) const;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
};

// Puts an array of a thread into the named registers of sums.
class NamedSums : public Halide::Internal::IRMutator {
public:
    // The name of the Func.
    explicit NamedSums(std::string func) : func(std::move(func)) {}
    int found = 0;  // arrays

private:
    const std::string func;
    std::string array;
    int count = 0;  // of a thread

    int number_of(const Halide::Expr &index) const;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Free *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;
    Halide::Expr visit(const Halide::Internal::Load *op) override;
};

}  // namespace heed
