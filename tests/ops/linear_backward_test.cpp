// heed_linear_backward against sums in double, and what it refuses.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include "attention.h"
#include "element.h"
#include "heed/heed.hpp"

namespace heed_test::ops {
namespace {

using testing::HasSubstr;

struct Sizes {
    int32_t rows, dim_in, dim_out;
};

// Elements as the type holds them, with their bits.
struct Values {
    Values(heed_dtype type, int64_t count, uint64_t seed) : dtype(type) {
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
    heed_dtype dtype;
    std::vector<float> values;
    std::vector<uint16_t> bits;
};

// A call with all gradients, dweight and dbias on top of ones.
struct LinearBackward {
    LinearBackward(const Sizes &s, heed_dtype dtype)
        : size(s), x(dtype, int64_t{s.rows} * s.dim_in, 1), weight(dtype, int64_t{s.dim_out} * s.dim_in, 2),
          dy(dtype, int64_t{s.rows} * s.dim_out, 3), dx(dtype, int64_t{s.rows} * s.dim_in, 4), dweight(dtype, 0, 0),
          dbias(dtype, 0, 0) {
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

    // sum of a(i) b(i), i below n, on top of `start`, within the rounding of float sums and of the type.
    template <typename A, typename B>
    void expect_sum(float got, float start, int32_t n, const A &a, const B &b) const {
        double sum = 0, size_of_sum = std::fabs(static_cast<double>(start));
        for (int32_t i = 0; i < n; i++) {
            const double product = static_cast<double>(a(i)) * static_cast<double>(b(i));
            sum += product;
            size_of_sum += std::fabs(product);
        }
        const double rounding = args.dtype == HEED_F32 ? 0 : args.dtype == HEED_F16 ? 0x1p-11 : 0x1p-8;
        const double expected = sum + static_cast<double>(start);
        const double bound = 0x1p-22 * size_of_sum + 1.01 * rounding * (std::fabs(sum) + std::fabs(expected));
        ASSERT_LE(std::fabs(static_cast<double>(got) - expected), bound);
    }
    void expect_correct() const {
        const auto at = [](const Values &values, int32_t row, int32_t width, int32_t column) {
            return values[static_cast<size_t>(row) * static_cast<size_t>(width) + static_cast<size_t>(column)];
        };
        const auto one = [](int32_t) { return 1.0f; };
        for (int32_t n = 0; n < size.dim_out; n++) {
            const auto dy_of = [&](int32_t row) { return at(dy, row, size.dim_out, n); };
            expect_sum(dbias[static_cast<size_t>(n)], 1, size.rows, dy_of, one);
            for (int32_t k = 0; k < size.dim_in; k++) {
                const auto x_of = [&](int32_t row) { return at(x, row, size.dim_in, k); };
                expect_sum(at(dweight, n, size.dim_in, k), 1, size.rows, dy_of, x_of);
            }
        }
        for (int32_t row = 0; row < size.rows; row++) {
            for (int32_t k = 0; k < size.dim_in; k++) {
                const auto dy_of = [&](int32_t n) { return at(dy, row, size.dim_out, n); };
                const auto weight_of = [&](int32_t n) { return at(weight, n, size.dim_in, k); };
                expect_sum(at(dx, row, size.dim_in, k), 0, size.dim_out, dy_of, weight_of);
            }
        }
    }

    const Sizes size;
    const Values x, weight, dy;
    Values dx, dweight, dbias;
    heed_linear_backward_args args = {};
};

constexpr Sizes shapes[] = {{1, 1, 1}, {3, 17, 5}, {33, 64, 31}, {70, 31, 100}, {129, 48, 64}};

TEST(LinearBackwardTest, MatchesTheSums) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        for (const Sizes &shape : shapes) {
            LinearBackward call(shape, dtype);
            ASSERT_EQ(heed_linear_backward(&call.args), HEED_OK) << heed_last_error();
            call.expect_correct();
            if (testing::Test::HasFatalFailure())
                FAIL() << shape.rows << " rows, " << shape.dim_in << " -> " << shape.dim_out;
        }
    }
}

TEST(LinearBackwardTest, BitsDoNotDependOnThreadsOrOnWhatElseIsWanted) {
    LinearBackward all({200, 96, 160}, HEED_F32), two(all.size, HEED_F32), input(all.size, HEED_F32),
        weights(all.size, HEED_F32);
    two.args.execution.num_threads = 2;
    all.args.execution.num_threads = 1;
    input.args.dweight = input.args.dbias = input.args.x = {};
    weights.args.dx = weights.args.weight = {};
    for (LinearBackward *call : {&all, &two, &input, &weights}) {
        ASSERT_EQ(heed_linear_backward(&call->args), HEED_OK) << heed_last_error();
    }
    EXPECT_EQ(two.dx.values, all.dx.values);
    EXPECT_EQ(two.dweight.values, all.dweight.values);
    EXPECT_EQ(two.dbias.values, all.dbias.values);
    EXPECT_EQ(input.dx.values, all.dx.values);
    EXPECT_EQ(weights.dweight.values, all.dweight.values);
    EXPECT_EQ(weights.dbias.values, all.dbias.values);
}

TEST(LinearBackwardTest, Refusals) {
    struct Case {
        std::function<void(heed_linear_backward_args &)> change;
        const char *sentence;
        heed_status status = HEED_INVALID_ARGUMENT;
    };
    const Case cases[] = {
        {[](auto &a) { a.struct_size = 9; }, "heed_linear_backward_args.struct_size is 9"},
        {[](auto &a) { a.dtype = HEED_I8; }, "dtype is"},
        {[](auto &a) { a.num_rows = -1; }, "num_rows is -1"},
        {[](auto &a) { a.dim_in = 0; }, "dim_in is 0"},
        {[](auto &a) { a.dim_out = 0; }, "dim_out is 0"},
        {[](auto &a) { a.execution.device = HEED_CUDA; }, "no CUDA kernels", HEED_NO_DEVICE},
        {[](auto &a) { a.execution.num_threads = -1; }, "num_threads is -1"},
        {[](auto &a) { a.dy = {}; }, "dy is NULL"},
        {[](auto &a) { a.x = {}; }, "x is NULL"},
        {[](auto &a) { a.weight = {}; }, "weight is NULL"},
        {[](auto &a) { a.dx = a.x; }, "dx overlaps x"},
        {[](auto &a) { a.dx.dtype = HEED_F16; }, "dx.dtype is"},
        {[](auto &a) { a.dweight.size = 7; }, "dweight.size is 7"},
        {[](auto &a) { a.num_rows = INT32_MAX; }, "dx.size is"},
    };
    for (const Case &c : cases) {
        LinearBackward call({33, 64, 31}, HEED_F32), before({33, 64, 31}, HEED_F32);
        c.change(call.args);
        EXPECT_EQ(heed_linear_backward(&call.args), c.status) << c.sentence;
        EXPECT_THAT(heed_last_error(), HasSubstr(c.sentence));
        EXPECT_EQ(call.dx.values, before.dx.values);
        EXPECT_EQ(call.dweight.values, before.dweight.values);
        EXPECT_EQ(call.dbias.values, before.dbias.values);
    }
    EXPECT_EQ(heed_linear_backward(nullptr), HEED_INVALID_ARGUMENT);
    LinearBackward none({0, 4, 4}, HEED_F32);
    EXPECT_EQ(heed_linear_backward(&none.args), HEED_OK) << heed_last_error();
}

}  // namespace
}  // namespace heed_test::ops
