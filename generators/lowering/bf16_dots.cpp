#include "generators/lowering/bf16_dots.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const char *const dot_name = "heed_bf16_dot", *const word_name = "heed_bf16_word";

// `low` is every second element in memory, from some element on: all of them, as words. Of a load whose stride of 2 it
// knows Halide makes a slice (StageStridedLoads), not of one that only a branch tells.
Expr whole_words(const Expr &low) {
    const int elements = 2 * low.type().lanes();
    const auto as_words = [&](const Expr &all) { return reinterpret(UInt(32, elements / 2), all); };
    if (const auto *load = low.as<Load>()) {
        const auto *place = load->index.as<Ramp>();
        if (place && is_const(place->stride, 2)) {
            const Expr both = is_const_one(load->predicate)
                                  ? const_true(elements)
                                  : Shuffle::make_interleave({load->predicate, load->predicate});
            return as_words(Load::make(low.type().with_lanes(elements), load->name,
                                       Ramp::make(place->base, make_one(place->base.type()), elements), load->image,
                                       load->param, both, ModulusRemainder()));
        }
    }
    const auto *every_second = low.as<Shuffle>();
    if (!every_second || !every_second->is_slice() || every_second->slice_begin() != 0 ||
        every_second->slice_stride() != 2 || every_second->vectors.size() != 1 ||
        every_second->vectors[0].type().lanes() != elements) {
        throw CompileError("words of bf16 are no vectors of neighbours");
    }
    return as_words(every_second->vectors[0]);
}

}  // namespace

Expr bf16_pair(const Expr &low, const Expr &high) { return cast<uint32_t>(low) | cast<uint32_t>(high) << 16; }

Expr bf16_word(const Expr &low, const Expr &high) {
    return Call::make(UInt(32), word_name, {low, high}, Call::PureExtern);
}

Expr bf16_half(const Expr &pair, int half) {
    return reinterpret<float>(half == 0 ? pair << 16 : pair & Expr(0xffff0000u));
}

Expr bf16_of_key(const Expr &pair, const Expr &key) {
    return select(key % 2 == 0, bf16_half(pair, 0), bf16_half(pair, 1));
}

Expr to_bf16(const Expr &value) { return reinterpret<uint16_t>(cast(BFloat(16), value)); }

Expr bf16_dot(const Expr &accumulator, const Expr &a, const Expr &b) {
    return Call::make(Float(32), dot_name, {accumulator, a, b}, Call::PureExtern);
}

Expr dot_operand(const Expr &e, int index) {
    const auto *call = e.as<Call>();
    return call && call->name == dot_name ? call->args[index] : Expr();
}

Expr LowerBf16Dots::visit(const Call *op) {
    if (op->name == word_name) return whole_words(mutate(op->args[0]));
    if (op->name != dot_name) return IRMutator::visit(op);
    Expr accumulator = mutate(op->args[0]), a = mutate(op->args[1]), b = mutate(op->args[2]);
    const int lanes = op->type.lanes();
    if (lanes == 1) {
        for (int half : {1, 0}) accumulator = accumulator + bf16_half(a, half) * bf16_half(b, half);
        return accumulator;
    }
    found++;
    auto floats = [&](const Expr &pairs) {
        return cast(Float(32, 2 * lanes), reinterpret(BFloat(16, 2 * lanes), pairs));
    };
    return accumulator + VectorReduce::make(VectorReduce::Add, floats(a) * floats(b), lanes);
}

}  // namespace heed
