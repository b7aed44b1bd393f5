#pragma once
// Lowering pass: places of keys that a stage has looked up are used as they are.
//
//   k[max(min(slots[key], num_slots - 1), 0) * stride + ..]  becomes  k[slots[key] * stride + ..]
//
// Halide 21 clamps an index that comes from another stage to what that index is said to be, since the stage may hold
// elements that are never computed; unsafe_promise_clamped() promises it in vain. Slot and page of a key cost eight
// instructions so, in each tile that reads the key: Zen 5, bf16, heads of 64, 1024 tokens, 2 % of the time.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class TrustPlaces : public Halide::Internal::IRMutator {
public:
    // Arrays of places, all of them inside what they index: a page is clamped where it is looked up (PageTable::slot),
    // positions in a sequence too (define_slots), and lengths are those that a plan has checked. An element that was
    // never computed must not be an index: loops that end with the keys that there are compute places in whole vectors,
    // which are whole tiles of those that read them (AttentionConfig::block_error).
    explicit TrustPlaces(std::vector<std::string> arrays) : arrays(std::move(arrays)) {}

protected:
    using IRMutator::visit;
    Halide::Expr visit(const Halide::Internal::Max *op) override;

private:
    const std::vector<std::string> arrays;

    bool is_place(const Halide::Expr &e) const;
};

}  // namespace heed
