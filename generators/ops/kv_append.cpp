#include "generators/ops/kv_append.h"

namespace heed {

using namespace Halide;

namespace {

constexpr int32_t nan_bits = 0x7fc00000;
constexpr float largest_code = 127.f;

}  // namespace

// Divisions are strict: a product with a reciprocal is not the quotient that the contract names.
KvAppendKernel::KvAppendKernel(ElementType type) : KvAppendArguments({type}), over_d(0, x.dim(0).extent(), "over_d") {
    Expr bits = reinterpret<int32_t>(to_float(type, x(over_d, head, token)));
    magnitude(head, token) = 0;
    magnitude(head, token) = max(magnitude(head, token), bits & 0x7fffffff);

    Expr largest = magnitude(head, token);
    Expr quotient = strict_float(reinterpret<float>(largest) / largest_code);
    scale(head, token) = reinterpret<float>(select(largest >= infinity_bits, nan_bits, reinterpret<int32_t>(quotient)));

    Expr row_scale = scale(head, token), scale_bits = reinterpret<int32_t>(row_scale);
    Expr code = round(strict_float(to_float(type, x(d, head, token)) / row_scale));
    codes(d, head, token) = select(scale_bits == 0 || scale_bits == nan_bits, cast<int8_t>(0),
                                   cast<int8_t>(clamp(code, -largest_code, largest_code)));

    OutputImageParam code_buffer = codes.output_buffer(), scale_buffer = scale.output_buffer();
    for (int i = 0; i < 3; i++) {
        x.dim(i).set_min(0);
        code_buffer.dim(i).set_min(0).set_extent(x.dim(i).extent());
    }
    for (int i = 0; i < 2; i++) scale_buffer.dim(i).set_min(0).set_extent(x.dim(i + 1).extent());
}

}  // namespace heed
