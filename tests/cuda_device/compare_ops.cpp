// setp without its .and, .or and .xor forms, which the decoder adds.
#include <cmath>

#include "tests/cuda_device/formats.h"
#include "tests/cuda_device/lane_ops.h"

namespace heed::device {
namespace {

template <typename T>
bool equal(T a, T b) {
    return a == b;
}
template <typename T>
bool not_equal(T a, T b) {
    return a != b;
}
template <typename T>
bool less(T a, T b) {
    return a < b;
}
template <typename T>
bool less_equal(T a, T b) {
    return a <= b;
}
template <typename T>
bool greater(T a, T b) {
    return a > b;
}
template <typename T>
bool greater_equal(T a, T b) {
    return a >= b;
}

LaneOp find_integer(const std::string &comparison, Type type) {
    const bool order = type.kind != Kind::bits;
    if (comparison == "eq") return HEED_PICK_INTEGER(equal, type);
    if (comparison == "ne") return HEED_PICK_INTEGER(not_equal, type);
    if (comparison == "lt" && order) return HEED_PICK_INTEGER(less, type);
    if (comparison == "le" && order) return HEED_PICK_INTEGER(less_equal, type);
    if (comparison == "gt" && order) return HEED_PICK_INTEGER(greater, type);
    if (comparison == "ge" && order) return HEED_PICK_INTEGER(greater_equal, type);
    if (type.kind != Kind::unsigned_int) return nullptr;
    if (comparison == "lo") return HEED_PICK_INTEGER(less, type);
    if (comparison == "ls") return HEED_PICK_INTEGER(less_equal, type);
    if (comparison == "hi") return HEED_PICK_INTEGER(greater, type);
    if (comparison == "hs") return HEED_PICK_INTEGER(greater_equal, type);
    return nullptr;
}

// A value of a floating format, as something C++ compares.
template <bool ftz>
struct Single {
    using Register = float;
    static float value(float x) { return ftz ? flush(x) : x; }
};
struct Double {
    using Register = double;
    static double value(double x) { return x; }
};
struct Half {
    using Register = uint16_t;
    static float value(uint16_t x) { return half_to_float(x); }
};
struct Brain {
    using Register = uint16_t;
    static float value(uint16_t x) { return brain_to_float(x); }
};

// The ordered comparisons are false where an operand is NaN, the ones ending in u are true.
template <typename F>
struct Compare {
    using R = typename F::Register;
    static bool eq(R a, R b) { return F::value(a) == F::value(b); }
    static bool ne(R a, R b) { return F::value(a) < F::value(b) || F::value(a) > F::value(b); }
    static bool lt(R a, R b) { return F::value(a) < F::value(b); }
    static bool le(R a, R b) { return F::value(a) <= F::value(b); }
    static bool gt(R a, R b) { return F::value(a) > F::value(b); }
    static bool ge(R a, R b) { return F::value(a) >= F::value(b); }
    static bool equ(R a, R b) { return !ne(a, b); }
    static bool neu(R a, R b) { return !eq(a, b); }
    static bool ltu(R a, R b) { return !ge(a, b); }
    static bool leu(R a, R b) { return !gt(a, b); }
    static bool gtu(R a, R b) { return !le(a, b); }
    static bool geu(R a, R b) { return !lt(a, b); }
    static bool num(R a, R b) { return F::value(a) == F::value(a) && F::value(b) == F::value(b); }
    static bool nan(R a, R b) { return !num(a, b); }
};

template <typename F>
LaneOp find_float(const std::string &comparison) {
    using C = Compare<F>;
    static const struct {
        const char *name;
        LaneOp op;
    } comparisons[] = {{"eq", lanes<&C::eq>},   {"ne", lanes<&C::ne>},   {"lt", lanes<&C::lt>},
                       {"le", lanes<&C::le>},   {"gt", lanes<&C::gt>},   {"ge", lanes<&C::ge>},
                       {"equ", lanes<&C::equ>}, {"neu", lanes<&C::neu>}, {"ltu", lanes<&C::ltu>},
                       {"leu", lanes<&C::leu>}, {"gtu", lanes<&C::gtu>}, {"geu", lanes<&C::geu>},
                       {"num", lanes<&C::num>}, {"nan", lanes<&C::nan>}};
    for (const auto &c : comparisons)
        if (comparison == c.name) return c.op;
    return nullptr;
}

}  // namespace

LaneOpInfo find_compare_op(Opcode &opcode) {
    const Type type = opcode.take_type();
    LaneOpInfo info{nullptr, {Kind::predicate, 1}, 2, {type, type, {}}, false, false, false, 0};
    if (type.integer()) {
        info.op = find_integer(opcode.take_next(), type);
        return info;
    }
    const bool ftz = type.is(Kind::real, 32) && opcode.take("ftz");
    const std::string comparison = opcode.take_next();
    if (type.is(Kind::real, 32))
        info.op = ftz ? find_float<Single<true>>(comparison) : find_float<Single<false>>(comparison);
    if (type.is(Kind::real, 64)) info.op = find_float<Double>(comparison);
    if (type.is(Kind::real, 16)) info.op = find_float<Half>(comparison);
    if (type.is(Kind::brain, 16)) info.op = find_float<Brain>(comparison);
    return info;
}

}  // namespace heed::device
