#pragma once
// Values whose magnitude is at most a limit: larger finite ones become it; NaN and infinity stay.

#include "generators/common/device_memory.h"
#include "generators/contract/cuda_layer_arguments.h"

namespace heed {

// Both compare bits: the default float mode may assume that no value is NaN or infinite.
inline Halide::Expr clipped(const Halide::Expr &value, const Halide::Expr &limit) {
    Halide::Expr magnitude = bits(value) & 0x7fffffff;
    Halide::Expr beyond = magnitude > bits(limit) && magnitude <= infinity_bits;
    return Halide::reinterpret<float>(
        select(beyond, bits(limit) | (bits(value) & Halide::Expr(INT32_MIN)), bits(value)));
}

// What a gradient with respect to clipped values, given these, is before the clipping: 0 from the limit on.
inline Halide::Expr clipped_gradient(const Halide::Expr &gradient, const Halide::Expr &value,
                                     const Halide::Expr &limit) {
    Halide::Expr magnitude = bits(value) & 0x7fffffff;
    Halide::Expr at_limit = magnitude >= bits(limit) && magnitude <= infinity_bits;
    return Halide::reinterpret<float>(select(at_limit, 0, bits(gradient)));
}

HEED_KERNEL_ARGUMENTS(ClipDeviceArguments, HEED_CUDA_CLIP)
HEED_KERNEL_ARGUMENTS(ClipGradientArguments, HEED_CUDA_CLIP_GRADIENT)

// Elements one after the other: in chunks of 16 bytes where `wide`, else one at a time.
struct ElementwiseDevice : Results {
    std::vector<Halide::RDom> all;  // element of a chunk, chunk; of each part

protected:
    // stored: store_at() for element i.
    void add_parts(ElementType type, const Halide::Expr &wide, const Halide::Expr &count,
                   const std::function<Halide::Expr(Halide::Expr i)> &stored) {
        for (const int width : {chunk_of(type), 1}) {
            all.emplace_back(0, width, 0, select((wide != 0) == (width > 1), count / width, 0), "all");
            add(stored(all.back().y * width + all.back().x));
        }
    }
};

struct ClipDevice : ClipDeviceArguments, ElementwiseDevice {
    explicit ClipDevice(ElementType type) : ClipDeviceArguments({type}) {
        add_parts(type, wide, count, [&](const Halide::Expr &i) {
            return store_at(x_first, i, from_float(type, clipped(float_at(type, x_first, i), limit)));
        });
    }
};

struct ClipGradientDevice : ClipGradientArguments, ElementwiseDevice {
    explicit ClipGradientDevice(ElementType type) : ClipGradientArguments({type}) {
        add_parts(type, wide, count, [&](const Halide::Expr &i) {
            const Halide::Expr gradient = float_at(type, gradient_first, i), x = float_at(type, x_first, i);
            return store_at(gradient_first, i, from_float(type, clipped_gradient(gradient, x, limit)));
        });
    }
};

}  // namespace heed
