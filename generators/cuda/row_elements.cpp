#include "generators/cuda/row_elements.h"

#include "generators/cuda/intrinsics.h"

namespace heed::cuda {

using namespace Halide;

Elements load_floats(DeviceCode &code, const Expr &address, int count) {
    Elements result;
    for (int i = 0; i < count; i += count % 4 == 0 ? 4 : 1) {
        const Expr at = address + cast<uint64_t>(4 * i);
        if (count % 4 != 0) {
            result.push_back(code.let("x", load_f32(at)));
            continue;
        }
        const Expr four = code.let("four", load_fragment(at));
        for (int j = 0; j < 4; j++) result.push_back(code.let("x", float_of(four, j)));
    }
    return result;
}

void store_floats(DeviceCode &code, const Expr &address, const Elements &values) {
    const size_t step = values.size() % 4 == 0 ? 4 : 1;
    for (size_t i = 0; i < values.size(); i += step) {
        const Expr at = address + cast<uint64_t>(static_cast<int>(4 * i));
        code.run(step == 1 ? store_f32(at, values[i])
                           : store_fragment(at, fragment(values[i], values[i + 1], values[i + 2], values[i + 3])));
    }
}

Elements RowElements::load(const Expr &address, int count) {
    if (type == ElementType::f32) return load_floats(code, address, count);
    if (count == 1) return {code.let("x", to_float(type, cast<uint16_t>(load_u16(address))))};
    Elements result;
    const Expr words = code.let("words", load_fragment(address));
    for (int i = 0; i < width(); i++) {
        const Expr word = reinterpret<uint32_t>(float_of(words, i / 2));
        result.push_back(code.let("x", to_float(type, cast<uint16_t>(i % 2 == 0 ? word & 0xffff : word >> 16))));
    }
    return result;
}

void RowElements::store(const Expr &address, const Elements &values) {
    const auto bits = [&](size_t i) {
        return cast<uint32_t>(reinterpret(UInt(8 * size()), from_float(type, values[i])));
    };
    if (values.size() == 1) {
        code.run(size() == 4 ? store_u32(address, bits(0)) : store_u16(address, bits(0)));
        return;
    }
    Expr word[4];
    for (size_t i = 0; i < 4; i++) {
        word[i] = code.let("word", size() == 4 ? bits(i) : bits(2 * i) | bits(2 * i + 1) << 16);
    }
    code.run(store_fragment(address, fragment(word[0], word[1], word[2], word[3])));
}

}  // namespace heed::cuda
