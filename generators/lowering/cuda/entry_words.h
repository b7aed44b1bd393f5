#pragma once
// Words of an entry of a list that is a kernel's parameters (common/device_memory.h: entry_word).
//
// Parameters cannot be indexed. A select among 32 entries of four words is 250 instructions; branches that halve the
// range are five, taken by the whole warp, and find all words of the entry. They are where the last variable that the
// entry's number depends on is defined.

#include "Halide.h"

namespace heed {

class LowerEntryWords : public Halide::Internal::IRMutator {
public:
    int found = 0;  // searches

private:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt searched(const std::string &variable, Halide::Internal::Stmt body);
};

}  // namespace heed
