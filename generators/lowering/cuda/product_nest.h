#pragma once
// What LowerTileProducts looks for: serial loops around c[..] = c[..] + a[..] * b[..], and the indices in full.

#include <set>
#include <string>
#include <vector>

#include "Halide.h"
#include "generators/common/element_type.h"
#include "generators/lowering/cuda/lets.h"

namespace heed {

struct ProductNest {
    std::vector<const Halide::Internal::For *> loops;
    const Halide::Internal::Store *store = nullptr;
    std::string a, b;
    Halide::Expr c_index, a_index, b_index;
    Halide::Expr condition;               // of terms; undefined: all are summed
    ElementType type = ElementType::f32;  // of the product: that of a
    bool has_codes = false;               // b has
    Halide::Type a_in_registers;          // of elements of a there; undefined: a is in shared memory
    bool leaves_out = false;              // terms of which a is -0

    // Whether it is one of elements in shared memory, or, those of a, in registers.
    bool read(Halide::Internal::Stmt s, Lets lets, const std::set<std::string> &shared);

private:
    bool read_product(const Halide::Internal::Mul *product, const Halide::Internal::Load **x,
                      const Halide::Internal::Load **y);
};

}  // namespace heed
