#include "generators/lowering/trust_places.h"

#include <algorithm>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

// An element of one of the arrays, which are tuples.
bool TrustPlaces::is_place(const Expr &e) const {
    const auto *load = e.as<Load>();
    return load && std::any_of(arrays.begin(), arrays.end(),
                               [&](const std::string &array) { return load->name.rfind(array + ".", 0) == 0; });
}

Expr TrustPlaces::visit(const Max *op) {
    const auto *min = op->a.as<Min>();
    if (!min || !is_const_zero(op->b)) return IRMutator::visit(op);
    for (const Expr &place : {min->a, min->b}) {
        if (is_place(place)) return mutate(place);
    }
    return IRMutator::visit(op);
}

}  // namespace heed
