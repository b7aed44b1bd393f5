// Calls of heed_linear_backward and their sums in double.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "heed/heed.hpp"
#include "runtime/reference/element.h"
#include "tests/support/make_attention.h"
#include "tests/support/on_device.h"

namespace heed_test::ops {

struct LinearSizes {
    int32_t rows, dim_in, dim_out;
};

// Elements as the type holds them, with their bits.
struct TypedValues {
    TypedValues(heed_dtype type, int64_t count, uint64_t seed) : dtype(type) {
        Rng rng(seed);
        for (int64_t i = 0; i < count; i++) push(rng.normal());
    }
    void push(float x) {
        values.push_back(round_to(dtype, x));
        bits.push_back(dtype == HEED_F32 ? uint16_t{0} : to_bits(dtype, x));
    }
    heed_tensor tensor() const {
        return dtype == HEED_F32 ? heed::tensor(values.data(), values.size())
                                 : heed::tensor(bits.data(), bits.size(), dtype);
    }
    float operator[](size_t i) const { return dtype == HEED_F32 ? values[i] : from_bits(dtype, bits[i]); }
    bool operator==(const TypedValues &other) const { return values == other.values && bits == other.bits; }
    heed_dtype dtype;
    std::vector<float> values;
    std::vector<uint16_t> bits;
};

// A call with all gradients, dweight and dbias on top of ones.
struct LinearBackward {
    LinearBackward(const LinearSizes &s, heed_dtype dtype) : LinearBackward(s, dtype, dtype) {}
    LinearBackward(const LinearSizes &s, heed_dtype dtype, heed_dtype dtype_of_sums)
        : size(s), x(dtype, int64_t{s.rows} * s.dim_in, 1), weight(dtype, int64_t{s.dim_out} * s.dim_in, 2),
          dy(dtype, int64_t{s.rows} * s.dim_out, 3), dx(dtype, int64_t{s.rows} * s.dim_in, 4),
          dweight(dtype_of_sums, 0, 0), dbias(dtype_of_sums, 0, 0) {
        for (int64_t i = 0; i < int64_t{s.dim_out} * s.dim_in; i++) dweight.push(1);
        for (int32_t i = 0; i < s.dim_out; i++) dbias.push(1);
        args.struct_size = sizeof(args);
        args.dtype = dtype;
        args.num_rows = s.rows;
        args.dim_in = s.dim_in;
        args.dim_out = s.dim_out;
        args.x = x.tensor();
        args.weight = weight.tensor();
        args.dy = dy.tensor();
        args.dx = dx.tensor();
        args.dweight = dweight.tensor();
        args.dbias = dbias.tensor();
    }

    // On CUDA with copies of the tensors and the workspace there.
    heed_status run() {
        if (test_device() == HEED_CPU) return heed_linear_backward(&args);
        heed_linear_backward_args a = args;
        OnDevice device;
        for (heed_tensor *tensor : {&a.dx, &a.dweight, &a.dbias}) device.written(tensor);
        for (heed_tensor *tensor : {&a.x, &a.weight, &a.dy}) device.read(tensor);
        a.execution.device = HEED_CUDA;
        device.workspace(&a.execution, heed_linear_backward_workspace_bytes(&a));
        return device.run(&a.execution, [&] { return heed_linear_backward(&a); });
    }

    // got[at] is the sum of a(i) b(i), i below n, on top of `start`, within the rounding of float sums, n + 1 of each
    // product's part by the standard analysis, and of the type.
    template <typename A, typename B>
    void expect_sum(const TypedValues &got, size_t at, float start, int32_t n, const A &a, const B &b) const {
        double sum = 0, size_of_sum = std::fabs(static_cast<double>(start));
        for (int32_t i = 0; i < n; i++) {
            const double product = static_cast<double>(a(i)) * static_cast<double>(b(i));
            sum += product;
            size_of_sum += std::fabs(product);
        }
        const double rounding = got.dtype == HEED_F32 ? 0 : got.dtype == HEED_F16 ? 0x1p-11 : 0x1p-8;
        const double expected = sum + static_cast<double>(start);
        const double bound = (n + 1) * 0x1p-24 * size_of_sum + 1.01 * rounding * (std::fabs(sum) + std::fabs(expected));
        ASSERT_LE(std::fabs(static_cast<double>(got[at]) - expected), bound);
    }
    void expect_correct() const {
        const auto index = [](int32_t row, int32_t width, int32_t column) {
            return static_cast<size_t>(row) * static_cast<size_t>(width) + static_cast<size_t>(column);
        };
        const auto at = [&](const TypedValues &values, int32_t row, int32_t width, int32_t column) {
            return values[index(row, width, column)];
        };
        const auto one = [](int32_t) { return 1.0f; };
        for (int32_t n = 0; n < size.dim_out; n++) {
            const auto dy_of = [&](int32_t row) { return at(dy, row, size.dim_out, n); };
            expect_sum(dbias, static_cast<size_t>(n), 1, size.rows, dy_of, one);
            for (int32_t k = 0; k < size.dim_in; k++) {
                const auto x_of = [&](int32_t row) { return at(x, row, size.dim_in, k); };
                expect_sum(dweight, index(n, size.dim_in, k), 1, size.rows, dy_of, x_of);
            }
        }
        for (int32_t row = 0; row < size.rows; row++) {
            for (int32_t k = 0; k < size.dim_in; k++) {
                const auto dy_of = [&](int32_t n) { return at(dy, row, size.dim_out, n); };
                const auto weight_of = [&](int32_t n) { return at(weight, n, size.dim_in, k); };
                expect_sum(dx, index(row, size.dim_in, k), 0, size.dim_out, dy_of, weight_of);
            }
        }
    }

    const LinearSizes size;
    const TypedValues x, weight, dy;
    TypedValues dx, dweight, dbias;
    heed_linear_backward_args args = {};
};

}  // namespace heed_test::ops
