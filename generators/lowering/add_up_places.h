#pragma once
// Lowering pass: the place of a key that a stage has looked up is one number for each input.
//
//   k[slots.0[key] * slot_stride + slots.1[key] * page_stride + ..]  becomes  k[k_places[key] + ..]
//
// Each tile that reads the key would multiply and add again: where rows are lanes two keys of a tile of values took 50
// instructions, of which 16 are FMAs, and take 31.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class AddUpPlaces : public Halide::Internal::IRMutator {
public:
    // Pairs of arrays of slots and pages, `name`.0 and `name`.1.
    explicit AddUpPlaces(std::vector<std::string> arrays) : arrays(std::move(arrays)) {}

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Expr visit(const Halide::Internal::Add *op) override;

private:
    const std::vector<std::string> arrays;
    std::string pair;                 // the pair of arrays that is in scope
    std::vector<std::string> inputs;  // that have places of it

    Halide::Expr place_of(const std::string &input, const Halide::Expr &key);
};

}  // namespace heed
