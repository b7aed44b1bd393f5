// Tensors of the operations' tests: any dtype and layout, in guarded memory, elements read and written one by one.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/ops/op_kernels.h"
#include "runtime/reference/element.h"
#include "tests/support/call.h"
#include "tests/support/device.h"
#include "tests/support/guard.h"
#include "tests/support/make_attention.h"
#include "tests/support/table_kernels.h"

namespace heed_test::ops {

using Extents = std::array<int64_t, 4>;

// [0][1][2][3], innermost last. All bytes are 0xff at first.
class Tensor {
public:
    Tensor(heed_dtype dtype, const Extents &extents, Layout layout = Layout::packed, Flush flush = Flush::rear)
        : layout(make_layout(layout, {extents[0], extents[1], extents[2], extents[3]})), dtype_(dtype),
          extents_(extents) {
        strides_ = {extents[1] * extents[2] * extents[3], extents[2] * extents[3], extents[3], 1};
        if (layout != Layout::packed) std::copy(this->layout.stride, this->layout.stride + 4, strides_.begin());
        span_ = 1;
        for (size_t i = 0; i < 4; i++) span_ += (extents[i] - 1) * strides_[i];
        if (count() == 0) span_ = 0;
        buffer_ = GuardedBuffer(static_cast<size_t>(span_ * element_bytes(dtype)), flush);
    }

    heed_layout layout;

    heed_tensor tensor() const { return {buffer_.data(), span_, dtype_}; }
    heed_dtype dtype() const { return dtype_; }
    const Extents &extents() const { return extents_; }
    int64_t count() const { return extents_[0] * extents_[1] * extents_[2] * extents_[3]; }
    int64_t offset(int64_t a, int64_t b, int64_t c, int64_t d) const {
        return a * strides_[0] + b * strides_[1] + c * strides_[2] + d * strides_[3];
    }

    void set(int64_t a, int64_t b, int64_t c, int64_t d, float x) {
        if (dtype_ == HEED_F32) {
            at<float>(a, b, c, d) = x;
        } else {
            at<uint16_t>(a, b, c, d) = to_bits(dtype_, x);
        }
    }
    float get(int64_t a, int64_t b, int64_t c, int64_t d) const {
        if (dtype_ == HEED_I8) return static_cast<float>(at<int8_t>(a, b, c, d));
        return dtype_ == HEED_F32 ? at<float>(a, b, c, d) : from_bits(dtype_, at<uint16_t>(a, b, c, d));
    }
    template <typename T>
    T &at(int64_t a, int64_t b, int64_t c, int64_t d) const {
        return static_cast<T *>(buffer_.data())[offset(a, b, c, d)];
    }

    template <typename Visit>
    void for_each(const Visit &visit) const {
        for (int64_t a = 0; a < extents_[0]; a++)
            for (int64_t b = 0; b < extents_[1]; b++)
                for (int64_t c = 0; c < extents_[2]; c++)
                    for (int64_t d = 0; d < extents_[3]; d++) visit(a, b, c, d);
    }
    void fill_normal(uint64_t seed) {
        Rng rng(seed);
        for_each([&](int64_t a, int64_t b, int64_t c, int64_t d) { set(a, b, c, d, rng.normal()); });
    }

    std::vector<unsigned char> bytes() const {
        const auto *data = static_cast<const unsigned char *>(buffer_.data());
        return std::vector<unsigned char>(data, data + buffer_.bytes());
    }
    bool slack_intact() const { return buffer_.slack_intact(); }

    // Everything that is no element still holds 0xff.
    bool gaps_intact() const {
        std::vector<unsigned char> rest = bytes();
        const auto size = static_cast<size_t>(element_bytes(dtype_));
        for_each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
            std::memset(rest.data() + static_cast<size_t>(offset(a, b, c, d)) * size, 0xff, size);
        });
        return slack_intact() && std::all_of(rest.begin(), rest.end(), [](unsigned char x) { return x == 0xff; });
    }

private:
    heed_dtype dtype_;
    Extents extents_, strides_;
    int64_t span_ = 0;
    GuardedBuffer buffer_;
};

// Relative error of rounding to the dtype, and half of its smallest step.
inline double unit_roundoff(heed_dtype dtype) {
    return dtype == HEED_F32 ? 0x1p-24 : dtype == HEED_F16 ? 0x1p-11 : 0x1p-8;
}
inline double half_smallest(heed_dtype dtype) {
    return dtype == HEED_F32 ? 0x1p-150 : dtype == HEED_F16 ? 0x1p-25 : 0x1p-134;
}

// Every dtype on every ISA of the tested device that op kernels exist for.
struct OpCase {
    heed_dtype dtype;
    heed::KernelTarget target;
};

inline std::vector<heed::KernelTarget> op_targets() {
    if (test_device() == HEED_CUDA) return {heed::Capability::sm75};
    std::vector<heed::KernelTarget> targets = {heed::Isa::x86_64};
    if (machine_has(HEED_AVX2)) targets.push_back(heed::Isa::avx2);
    return targets;
}

inline std::vector<OpCase> op_cases() {
    std::vector<OpCase> cases;
    for (const heed::KernelTarget target : op_targets()) {
        for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) cases.push_back({dtype, target});
    }
    return cases;
}

inline std::string op_case_name(const testing::TestParamInfo<OpCase> &info) {
    return std::string(dtype_name(info.param.dtype)) + "_" + isa_name(info.param.target.value);
}
inline void PrintTo(const OpCase &c, std::ostream *stream) { *stream << dtype_name(c.dtype); }

// Runs the kernels of one ISA.
class OpTest : public testing::TestWithParam<OpCase> {
protected:
    void SetUp() override { heed::limit_op_target(GetParam().target); }
    void TearDown() override { heed::limit_op_target(heed::highest_cpu_target); }
    heed_dtype dtype() const { return GetParam().dtype; }

    // The kernel that runs is one of this ISA.
    void expect_kernel(heed::Op op, heed_dtype dtype, heed_dtype kv_dtype) const {
        const heed::OpKernel *kernel = nullptr;
        const auto find = test_device() == HEED_CUDA ? heed::find_cuda_op_kernel : heed::find_op_kernel;
        ASSERT_EQ(find(op, dtype, kv_dtype, &kernel), HEED_OK) << heed_last_error();
        EXPECT_EQ(kernel->target, GetParam().target) << kernel->name;
    }
};

// A test whose memory or expectation is the CPU's.
#define FOR_THE_CPU()                                                                                                  \
    if (test_device() == HEED_CUDA) GTEST_SKIP() << "for the CPU"

// A call fails with `status` and a sentence that names `field`.
#define EXPECT_FAILS(call, status, field)                                                                              \
    EXPECT_EQ(call, status) << heed_last_error();                                                                      \
    EXPECT_NE(std::string(heed_last_error()).find(field), std::string::npos) << heed_last_error()

}  // namespace heed_test::ops
