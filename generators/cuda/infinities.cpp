#include "generators/cuda/infinities.h"

#include <functional>

#include "generators/cuda/intrinsics.h"

namespace heed::cuda {

using namespace Halide;

namespace {

using OfElement = std::function<Expr(const Expr &element)>;  // bits to bits, both UInt(32) below 2^16

uint32_t infinity_of(ElementType type) { return type == ElementType::f16 ? 0x7c00 : 0x7f80; }

Expr of_word(const Expr &word, const OfElement &of) { return of(word & Expr(0xffffu)) | of(word >> 16) << 16; }
Expr first_word(const Expr &two) { return cast<uint32_t>(two); }
Expr second_word(const Expr &two) { return cast<uint32_t>(two >> 32); }

Expr of_two_words(const Expr &two, const OfElement &of) {
    return cast<uint64_t>(of_word(first_word(two), of)) | cast<uint64_t>(of_word(second_word(two), of)) << 32;
}

}  // namespace

Expr numbers_of(ElementType type, const Expr &two_words) {
    return of_two_words(two_words, [&](const Expr &bits) {
        return select((bits & Expr(0x7fffu)) >= Expr(infinity_of(type)), Expr(0u), bits);
    });
}

Expr counted_infinities(ElementType type, const Expr &two_words) {
    const bool is_f16 = type == ElementType::f16;
    const uint32_t plus = is_f16 ? 0x3c00 : 0x3f80, minus = is_f16 ? 0x5800 : 0x4300, both = is_f16 ? 0x5808 : 0x4301;
    return of_two_words(two_words, [&](const Expr &bits) {
        const Expr infinity = Expr(infinity_of(type));
        return select((bits & Expr(0x7fffu)) < infinity, Expr(0u), bits == infinity, Expr(plus),
                      bits == (infinity | Expr(0x8000u)), Expr(minus), Expr(both));
    });
}

Expr add_infinities(const Expr &x, const Expr &counted) {
    const Expr count = cast<int32_t>(counted), with = select((count & 127) != 0, add_infinity(x, false), x);
    return select(count >= 128, add_infinity(with, true), with);
}

}  // namespace heed::cuda
