#include "generators/lowering/words.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const char *const word_name = "heed_word_of_neighbours";

// `first` is every n-th element in memory, from some element on: all of them, as words. Of a load whose stride it knows
// Halide makes a slice (StageStridedLoads), not of one that only a branch tells. A word is masked as its first element
// is.
Expr whole_words(const Expr &first, int n) {
    const int elements = n * first.type().lanes();
    if (n * first.type().bits() != 32) throw CompileError("words have 32 bits");
    const auto as_words = [&](const Expr &all) { return reinterpret(UInt(32, elements / n), all); };
    if (const auto *load = first.as<Load>()) {
        const auto *place = load->index.as<Ramp>();
        if (place && is_const(place->stride, n)) {
            const Expr all = is_const_one(load->predicate)
                                 ? const_true(elements)
                                 : Shuffle::make_interleave(std::vector<Expr>(n, load->predicate));
            return as_words(Load::make(first.type().with_lanes(elements), load->name,
                                       Ramp::make(place->base, make_one(place->base.type()), elements), load->image,
                                       load->param, all, ModulusRemainder()));
        }
    }
    const auto *every_nth = first.as<Shuffle>();
    if (!every_nth || !every_nth->is_slice() || every_nth->slice_begin() != 0 || every_nth->slice_stride() != n ||
        every_nth->vectors.size() != 1 || every_nth->vectors[0].type().lanes() != elements) {
        throw CompileError("elements of words are no vectors of neighbours");
    }
    return as_words(every_nth->vectors[0]);
}

}  // namespace

Expr word_of_neighbours(const std::vector<Expr> &neighbours) {
    return Call::make(UInt(32), word_name, neighbours, Call::PureExtern);
}

Expr LowerWords::visit(const Call *op) {
    if (op->name != word_name) return IRMutator::visit(op);
    return whole_words(mutate(op->args[0]), static_cast<int>(op->args.size()));
}

}  // namespace heed
