#include "generators/lowering/bf16_dots.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const char *const dot_name = "heed_bf16_dot";

}  // namespace

Expr bf16_pair(const Expr &low, const Expr &high) { return cast<uint32_t>(low) | cast<uint32_t>(high) << 16; }

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
