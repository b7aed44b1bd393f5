#pragma once
// Elements of a kernel's type or, where an argument says so, of f32, at addresses.

#include "generators/common/device_memory.h"

namespace heed {

struct EitherType {
    using Expr = Halide::Expr;
    const ElementType type;
    const Expr is_f32;

    // The size of `count` elements, UInt(64).
    Expr bytes(const Expr &count) const {
        const auto size = [](const Halide::Type &of) { return Halide::cast<uint64_t>(of.bytes()); };
        const Expr own = size(stored_type(type));
        const Expr either = type == ElementType::f32 ? own : select(in_f32(), size(Halide::Float(32)), own);
        return Halide::cast<uint64_t>(count) * either;
    }

    Expr load(const Expr &at) const {
        if (type == ElementType::f32) return float_at(type, at, 0);
        const Expr own = load_at_if(!in_f32(), stored_type(type), at, 0);
        return select(in_f32(), load_at_if(in_f32(), Halide::Float(32), at, 0), to_float(type, own));
    }

    // As store_at().
    Expr store(const Expr &at, const Expr &value) const {
        if (type == ElementType::f32) return store_at(at, 0, value);
        return store_at_if(in_f32(), at, 0, value) + store_at_if(!in_f32(), at, 0, from_float(type, value));
    }

private:
    Expr in_f32() const { return is_f32 != 0; }
};

}  // namespace heed
