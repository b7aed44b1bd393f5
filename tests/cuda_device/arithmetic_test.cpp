// Instructions one by one: edge values and what PTX says about them.
#include <cmath>

#include "tests/cuda_device/device.h"
#include "tests/cuda_device/formats.h"

namespace heed::device {
namespace {

// The instruction reads %r1 to %r3, %d1 to %d3 or %h1 to %h3, all of which hold a, b and c, and writes %r0, %d0, %h0 or
// %p0.
struct Case {
    const char *instruction;
    uint64_t a, b, c, expected;
};

class ArithmeticTest : public DeviceTest {
protected:
    void expect(const Case &test) {
        const std::string instruction = test.instruction;
        const auto writes = [&](const char *name) { return instruction.find(name) != std::string::npos; };
        std::string text =
            "ld.param.u64 %d10, [p0]; ld.param.u64 %d1, [p1]; ld.param.u64 %d2, [p2]; ld.param.u64 %d3, [p3];\n";
        for (const char *i : {"1", "2", "3"})
            text += "cvt.u32.u64 %r" + std::string(i) + ", %d" + i + "; cvt.u16.u64 %h" + i + ", %d" + i + ";\n";
        text += instruction + "\n";
        if (writes("%p0")) text += "selp.b64 %d0, 1, 0, %p0;\n";
        if (writes("%h0")) text += "cvt.u64.u16 %d0, %h0;\n";
        if (writes("%r0")) text += "cvt.u64.u32 %d0, %r0;\n";
        const CUdeviceptr out = upload(std::vector<uint64_t>(1));
        ASSERT_EQ(run(ptx(4, text + "st.global.u64 [%d10], %d0;"), {}, {1}, 0, {out, test.a, test.b, test.c}), 0);
        const uint64_t result = download<uint64_t>(out, 1)[0];
        EXPECT_EQ(result, test.expected) << test.instruction << std::hex << " of " << test.a << ", " << test.b << ", "
                                         << test.c << " is " << result;
    }
    template <size_t count>
    void expect_all(const Case (&cases)[count]) {
        for (const Case &test : cases) expect(test);
    }
};

uint64_t f(float value) { return float_bits(value); }

uint64_t d(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

TEST_F(ArithmeticTest, Integers) {
    expect_all({
        {"add.s32 %r0, %r1, %r2;", 0x7fffffff, 1, 0, 0x80000000},
        {"sub.s64 %d0, %d1, -5;", 3, 0, 0, 8},
        {"add.s16 %h0, %h1, %h2;", 0xffff, 2, 0, 1},
        {"mul.lo.s32 %r0, %r1, %r2;", 0xffffffff, 7, 0, 0xfffffff9},
        {"mul.lo.u16 %h0, %h1, %h2;", 0xffff, 0xffff, 0, 1},
        {"mul.hi.s32 %r0, %r1, %r2;", 0xffffffff, 7, 0, 0xffffffff},
        {"mul.hi.u64 %d0, %d1, %d2;", ~0ull, ~0ull, 0, ~1ull},
        {"mul.wide.s32 %d0, %r1, %r2;", 0xffffffff, 7, 0, static_cast<uint64_t>(-7)},
        {"mul.wide.u16 %r0, %h1, %h2;", 0xffff, 0xffff, 0, 0xfffe0001},
        {"mad.wide.u32 %d0, %r1, %r2, %d3;", 0xffffffff, 2, 5, 0x200000003},
        {"mad.lo.s64 %d0, %d1, %d2, %d3;", 1ull << 40, 1ull << 30, 9, 9},
        {"div.s32 %r0, %r1, %r2;", 0xfffffff9, 2, 0, 0xfffffffd},
        {"rem.s32 %r0, %r1, %r2;", 0xfffffff9, 2, 0, 0xffffffff},
        {"div.u64 %d0, %d1, 10;", 12345678901234567890ull, 0, 0, 1234567890123456789ull},
        {"div.s32 %r0, %r1, %r2;", 0x80000000, 0xffffffff, 0, 0x80000000},
        {"min.s32 %r0, %r1, %r2;", 0xffffffff, 1, 0, 0xffffffff},
        {"min.u32 %r0, %r1, %r2;", 0xffffffff, 1, 0, 1},
        {"max.s16 %h0, %h1, %h2;", 0x8000, 1, 0, 1},
        {"abs.s32 %r0, %r1;", 0xfffffffb, 0, 0, 5},
        {"neg.s64 %d0, %d1;", 5, 0, 0, static_cast<uint64_t>(-5)},
        {"selp.u16 %h0, %h1, 9, 0;", 3, 0, 0, 9},
        {"slct.u32.s32 %r0, %r1, %r2, %r3;", 1, 2, 0xffffffff, 2},
        {"dp4a.s32.u32 %r0, %r1, %r2, %r3;", 0xff02ff01, 0x01020304, 100, 100 - 1 + 4 - 3 + 4},
        {"shl.b32 %r0, %r1, %r2;", 1, 32, 0, 0},
        {"shr.s32 %r0, %r1, %r2;", 0x80000000, 99, 0, 0xffffffff},
        {"shr.u64 %d0, %d1, 63;", 1ull << 63, 0, 0, 1},
        {"shr.s16 %h0, %h1, 4;", 0x8000, 0, 0, 0xf800},
        {"shf.l.wrap.b32 %r0, %r1, %r2, 36;", 0xabcdef01, 0x12345678, 0, 0x2345678a},
        {"shf.r.clamp.b32 %r0, %r1, %r2, 40;", 1, 0x12345678, 0, 0x12345678},
        {"popc.b64 %r0, %d1;", 0xff00ff00ff00ff01, 0, 0, 33},
        {"clz.b32 %r0, %r1;", 0x0000ffff, 0, 0, 16},
        {"clz.b64 %r0, %d1;", 0, 0, 0, 64},
        {"brev.b32 %r0, %r1;", 0x00000003, 0, 0, 0xc0000000},
        {"bfe.u32 %r0, %r1, 8, 8;", 0x12345678, 0, 0, 0x56},
        {"bfe.s32 %r0, %r1, 4, 4;", 0x000000f8, 0, 0, 0xffffffff},
        {"bfe.s32 %r0, %r1, 28, 16;", 0x80000000, 0, 0, 0xfffffff8},
        {"bfi.b32 %r0, %r1, %r2, 8, 12;", 0xabc, 0xffffffff, 0, 0xfffabcff},
        {"bfi.b64 %d0, %d1, %d2, 60, 8;", 0xff, 0, 0, 0xfull << 60},
        {"prmt.b32 %r0, %r1, %r2, 0x5410;", 0x44332211, 0x88776655, 0, 0x66552211},
        {"prmt.b32 %r0, %r1, %r2, %r3;", 0x443322f1, 0x88776655, 0xf8f8, 0xffffffff},
        {"lop3.b32 %r0, %r1, %r2, %r3, 0x96;", 0xff00ff00, 0xf0f0f0f0, 0xcccccccc, 0xc33cc33c},
        {"not.b16 %h0, %h1;", 0x00ff, 0, 0, 0xff00},
        {"mov.b64 %d0, {%h1, %h2, %h3, %h1};", 1, 2, 3, 0x0001000300020001},
        {"mov.b64 {_, %r0}, %d1;", 0x1234567800000000, 0, 0, 0x12345678},
        {"mov.b32 {%h5, %h0}, %r1;", 0xabcd1234, 0, 0, 0xabcd},
    });
}

TEST_F(ArithmeticTest, Comparisons) {
    const uint64_t nan = 0x7fc00000;
    expect_all({
        {"setp.lt.s32 %p0, %r1, %r2;", 0xffffffff, 0, 0, 1},
        {"setp.lo.u32 %p0, %r1, %r2;", 0xffffffff, 0, 0, 0},
        {"setp.ge.u64 %p0, %d1, %d2;", ~0ull, 1, 0, 1},
        {"setp.ne.b16 %p0, %h1, 5;", 5, 0, 0, 0},
        {"setp.lt.f32 %p0, %r1, %r2;", f(1), nan, 0, 0},
        {"setp.ltu.f32 %p0, %r1, %r2;", f(1), nan, 0, 1},
        {"setp.ne.f32 %p0, %r1, %r2;", nan, nan, 0, 0},
        {"setp.neu.f32 %p0, %r1, %r2;", nan, nan, 0, 1},
        {"setp.num.f32 %p0, %r1, %r2;", f(1), f(INFINITY), 0, 1},
        {"setp.nan.f32 %p0, %r1, %r2;", f(1), nan, 0, 1},
        {"setp.eq.ftz.f32 %p0, %r1, %r2;", 1, 0x80000002, 0, 1},
        {"setp.gt.f64 %p0, %d1, 0d3FF0000000000000;", d(1.5), 0, 0, 1},
        {"setp.gt.f16 %p0, %h1, %h2;", 0x3c01, 0x3c00, 0, 1},
        {"setp.eq.u32 %p1, %r2, 0; setp.lt.and.s32 %p0|%p2, %r1, 10, %p1;", 5, 0, 0, 1},
        {"setp.eq.u32 %p1, %r2, 0; setp.lt.and.s32 %p2|%p0, %r1, 10, !%p1;", 50, 1, 0, 1},
        {"setp.eq.u32 %p0, %r2, 0; setp.lt.or.s32 %p0, %r1, 10, %p0;", 50, 0, 0, 1},
        {"setp.eq.u32 %p1, %r2, 0; setp.lt.xor.s32 %p1|%p0, %r1, 10, %p1;", 5, 0, 0, 1},
        {"setp.eq.u32 %p1, %r2, 0; not.pred %p2, %p1; and.pred %p0, %p1, %p2;", 5, 0, 0, 0},
        {"setp.eq.u32 %p1, %r2, 0; mov.pred %p0, %p1; @%p1 mov.pred %p0, 0;", 5, 1, 0, 0},
    });
}

TEST_F(ArithmeticTest, Floats) {
    const uint64_t nan = 0x7fffffff, tiny = 0x00000001;
    expect_all({
        {"add.rn.f32 %r0, %r1, %r2;", f(1), f(0x1p-24f), 0, f(1)},
        {"add.f32 %r0, %r1, %r2;", tiny, tiny, 0, 2},
        {"add.ftz.f32 %r0, %r1, %r2;", tiny, 0x80000000, 0, 0},
        {"mul.ftz.f32 %r0, %r1, %r2;", f(-0x1p-100f), f(0x1p-40f), 0, 0x80000000},
        {"mul.f32 %r0, %r1, %r2;", f(INFINITY), 0, 0, nan},
        {"sub.f32 %r0, %r1, %r2;", 0xffc00001, f(1), 0, nan},
        {"fma.rn.f32 %r0, %r1, %r2, %r3;", f(1 + 0x1p-23f), f(1 - 0x1p-23f), f(-1), f(-0x1p-46f)},
        {"fma.rn.f64 %d0, %d1, %d2, %d3;", d(1 + 0x1p-52), d(1 - 0x1p-52), d(-1), d(-0x1p-104)},
        {"neg.f32 %r0, %r1;", 0, 0, 0, 0x80000000},
        {"abs.ftz.f32 %r0, %r1;", 0x80000001, 0, 0, 0},
        {"min.f32 %r0, %r1, %r2;", nan, f(3), 0, f(3)},
        {"max.f32 %r0, %r1, %r2;", f(3), 0xffffffff, 0, f(3)},
        {"max.f32 %r0, %r1, %r2;", 0x80000000, 0, 0, 0},
        {"min.f32 %r0, %r1, %r2;", 0, 0x80000000, 0, 0x80000000},
        {"max.NaN.f32 %r0, %r1, %r2;", f(3), 0xffffffff, 0, nan},
        {"max.ftz.f32 %r0, %r1, %r2;", tiny, 0x80000000, 0, 0},
        {"div.rn.f32 %r0, %r1, %r2;", f(1), f(3), 0, f(1.0f / 3)},
        {"div.full.f32 %r0, %r1, %r2;", f(1), f(0x1p127f), 0, f(0x1p-127f)},
        {"div.approx.f32 %r0, %r1, %r2;", f(1), f(-0x1p127f), 0, 0x80000000},
        {"sqrt.rn.f32 %r0, %r1;", f(2), 0, 0, f(std::sqrt(2.0f))},
        {"sqrt.rn.f32 %r0, %r1;", f(-2), 0, 0, nan},
        {"rcp.rn.f32 %r0, %r1;", f(3), 0, 0, f(1.0f / 3)},
        {"rcp.approx.ftz.f32 %r0, %r1;", f(0x1p127f), 0, 0, 0},
        {"rcp.approx.ftz.f32 %r0, %r1;", tiny, 0, 0, f(INFINITY)},
        {"ex2.approx.ftz.f32 %r0, %r1;", f(-INFINITY), 0, 0, 0},
        {"ex2.approx.f32 %r0, %r1;", f(-149), 0, 0, 1},
        {"ex2.approx.ftz.f32 %r0, %r1;", f(-127), 0, 0, 0},
        {"lg2.approx.f32 %r0, %r1;", f(8), 0, 0, f(3)},
        {"rsqrt.approx.f32 %r0, %r1;", f(16), 0, 0, f(0.25f)},
        {"copysign.f32 %r0, %r1, %r2;", f(-1), f(5), 0, f(-5)},
        {"mov.b32 %r0, 0f3F800000;", 0, 0, 0, f(1)},
        {"add.f16 %h0, %h1, %h2;", 0x3c00, 0x1000, 0, 0x3c00},  // 1 + 2^-11: a tie
        {"add.f16 %h0, %h1, %h2;", 0x3c01, 0x1000, 0, 0x3c02},
        {"fma.rn.f16x2 %r0, %r1, %r2, %r3;", 0x40003c00, 0x42004000, 0xbc003c00, 0x45004200},
        {"fma.rn.bf16x2 %r0, %r1, %r2, %r3;", 0x40003f80, 0x40403f80, 0x3f800000, 0x40e03f80},
        {"max.f16x2 %r0, %r1, %r2;", 0x7e003c00, 0x40004000, 0, 0x40004000},
        {"neg.f16x2 %r0, %r1;", 0x3c00bc00, 0, 0, 0xbc003c00},
        {"fma.rn.bf16 %h0, %h1, %h2, %h3;", 0x3f81, 0x3fc0, 0x8d80, 0x3fc1},  // 2^-100 less than a tie
        {"add.f64 %d0, %d1, %d2;", d(1), d(2), 0, d(3)},
    });
}

TEST_F(ArithmeticTest, Conversions) {
    expect_all({
        {"cvt.u64.u32 %d0, %r1;", ~0ull, 0, 0, 0xffffffff},
        {"cvt.s64.s32 %d0, %r1;", 0x80000000, 0, 0, 0xffffffff80000000},
        {"cvt.s32.s8 %r0, %r1;", 0x1ff, 0, 0, 0xffffffff},
        {"cvt.s16.s8 %h0, %h1;", 0x80, 0, 0, 0xff80},
        {"cvt.u32.u8 %r0, %h1;", 0x1fe, 0, 0, 0xfe},
        {"cvt.s8.s32 %r0, %r1;", 0x180, 0, 0, 0xffffff80},
        {"cvt.sat.s8.s32 %r0, %r1;", 1000, 0, 0, 127},
        {"cvt.sat.u8.s32 %r0, %r1;", 0xffffff00, 0, 0, 0},
        {"cvt.rn.f32.s32 %r0, %r1;", 0xffffffff, 0, 0, f(-1)},
        {"cvt.rn.f32.u32 %r0, %r1;", 0xffffffff, 0, 0, f(0x1p32f)},
        {"cvt.rz.f32.u32 %r0, %r1;", 0xffffffff, 0, 0, 0x4f7fffff},
        {"cvt.rp.f32.s32 %r0, %r1;", 0x01000001, 0, 0, 0x4b800001},
        {"cvt.rn.f32.u64 %r0, %d1;", (1ull << 62) + (1ull << 38) + 1, 0, 0, 0x5e800001},
        {"cvt.rn.f64.s64 %d0, %d1;", static_cast<uint64_t>(-3), 0, 0, d(-3)},
        {"cvt.rzi.s32.f32 %r0, %r1;", f(-2.7f), 0, 0, 0xfffffffe},
        {"cvt.rzi.s32.f32 %r0, %r1;", f(3e9f), 0, 0, 0x7fffffff},
        {"cvt.rzi.s32.f32 %r0, %r1;", 0x7fc00000, 0, 0, 0},
        {"cvt.rni.s32.f32 %r0, %r1;", f(2.5f), 0, 0, 2},
        {"cvt.rmi.s32.f32 %r0, %r1;", f(-2.5f), 0, 0, 0xfffffffd},
        {"cvt.rpi.u32.f32 %r0, %r1;", f(2.5f), 0, 0, 3},
        {"cvt.rzi.u32.f32 %r0, %r1;", f(-5), 0, 0, 0},
        {"cvt.rni.sat.s8.f32 %r0, %r1;", f(-200), 0, 0, 0xffffff80},
        {"cvt.rmi.f32.f32 %r0, %r1;", f(-2.5f), 0, 0, f(-3)},
        {"cvt.sat.f32.f32 %r0, %r1;", f(2.5f), 0, 0, f(1)},
        {"cvt.f32.f16 %r0, %h1;", 0x0001, 0, 0, f(0x1p-24f)},
        {"cvt.f32.f16 %r0, %h1;", 0xfc00, 0, 0, f(-INFINITY)},
        {"cvt.rn.f16.f32 %h0, %r1;", f(65519), 0, 0, 0x7bff},
        {"cvt.rn.f16.f32 %h0, %r1;", f(65520), 0, 0, 0x7c00},
        {"cvt.rn.f16.f32 %h0, %r1;", f(0x1.8p-24f), 0, 0, 2},
        {"cvt.rn.f16.f32 %h0, %r1;", f(0x1p-25f), 0, 0, 0},
        {"cvt.rn.f16.f32 %h0, %r1;", 0xffc00000, 0, 0, 0x7fff},
        {"cvt.rn.bf16.f32 %h0, %r1;", 0x3f808000, 0, 0, 0x3f80},
        {"cvt.rn.bf16.f32 %h0, %r1;", 0x3f818000, 0, 0, 0x3f82},
        {"cvt.rn.f16x2.f32 %r0, %r1, %r2;", f(1), f(2), 0, 0x3c004000},
        {"cvt.rn.bf16x2.f32 %r0, %r1, %r2;", f(1), f(2), 0, 0x3f804000},
        {"cvt.rn.f16.s32 %h0, %r1;", 2049, 0, 0, 0x6800},
        {"cvt.rzi.s32.f16 %r0, %h1;", 0xc100, 0, 0, 0xfffffffe},
        {"cvt.f64.f32 %d0, %r1;", f(1.5f), 0, 0, d(1.5)},
        {"cvt.rn.f32.f64 %r0, %d1;", d(1 + 0x1p-24), 0, 0, f(1)},
        {"cvt.rm.f32.f64 %r0, %d1;", d(-1 - 0x1p-30), 0, 0, f(-1 - 0x1p-23f)},
        {"cvt.rn.f16.f64 %h0, %d1;", d(1 + 0x1p-11 + 0x1p-40), 0, 0, 0x3c01},
        {"cvt.rn.ftz.f16.f32 %h0, %r1;", 1, 0, 0, 0},
    });
}

}  // namespace
}  // namespace heed::device
