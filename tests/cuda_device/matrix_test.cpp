// ldmatrix, mma and cp.async, and how they fit together.
#include "tests/cuda_device/device.h"
#include "tests/cuda_device/formats.h"

namespace heed::device {
namespace {

using std::to_string;

// Small numbers that both formats hold exactly.
float value(int i, int j) { return static_cast<float>((i * 7 + j * 3) % 16 - 8) * 0.25f; }

class MatrixTest : public DeviceTest, public testing::WithParamInterface<bool> {
protected:
    bool brain() const { return GetParam(); }
    uint16_t narrow(float x) const { return brain() ? float_to_brain(x) : float_to_half(x); }
    std::string mma() const {
        const std::string type = brain() ? "bf16" : "f16";
        return "mma.sync.aligned.m16n8k16.row.col.f32." + type + "." + type + ".f32 ";
    }
};

// d = a b + c with a of 16 x 16 row by row, b of 16 x 8 row by row (so transposed on its way) and rows of c and d.
constexpr char fragments[] = R"(
    mov.u32 %r0, %tid.x; mov.u32 %r1, dynamic; shl.b32 %r2, %r0, 4;
    // 16 bytes each: 512 of a, 256 of b
    cvt.u64.u32 %d4, %r2; add.u64 %d5, %d0, %d4; add.u64 %d6, %d1, %d4; add.u32 %r3, %r1, %r2;
    cp.async.cg.shared.global [%r3], [%d5], 16;
    setp.lt.u32 %p1, %r0, 16;
    @%p1 cp.async.ca.shared.global.L2::128B [%r3+512], [%d6], 16;
    cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
    // a: row lane % 16, column 8 * (lane / 16); b: row lane % 16
    and.b32 %r4, %r0, 15; shr.u32 %r5, %r0, 4;
    shl.b32 %r6, %r4, 5; shl.b32 %r7, %r5, 4; add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r1;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r6];
    shl.b32 %r8, %r4, 4; add.u32 %r8, %r8, %r1;
    ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%r14, %r15}, [%r8+512];
    // c and d: row lane / 4, columns 2 * (lane % 4), 8 floats a row
    shr.u32 %r9, %r0, 2; and.b32 %r20, %r0, 3; shl.b32 %r21, %r9, 5; shl.b32 %r22, %r20, 3; add.u32 %r21, %r21, %r22;
    cvt.u64.u32 %d7, %r21; add.u64 %d8, %d2, %d7; add.u64 %d9, %d3, %d7;
    ld.global.v2.f32 {%r30, %r31}, [%d8]; ld.global.v2.f32 {%r32, %r33}, [%d8+256];
)";

TEST_P(MatrixTest, ProductsThroughSharedMemory) {
    std::vector<uint16_t> a(256), b(128);
    std::vector<float> c(128), expected(128);
    for (int i = 0; i < 16; i++) {
        for (int k = 0; k < 16; k++) a[i * 16 + k] = narrow(value(i, k));
        for (int j = 0; j < 8; j++) b[i * 8 + j] = narrow(value(i + 3, j * 5)), c[i * 8 + j] = value(j, i) + 100;
    }
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            expected[i * 8 + j] = c[i * 8 + j];
            for (int k = 0; k < 16; k++) expected[i * 8 + j] += value(i, k) * value(k + 3, j * 5);
        }
    const std::string text = ptx(4, load_parameters(4) + fragments + mma() + R"({%r34, %r35, %r36, %r37},
            {%r10, %r11, %r12, %r13}, {%r14, %r15}, {%r30, %r31, %r32, %r33};
        st.global.v2.f32 [%d9], {%r34, %r35}; st.global.v2.f32 [%d9+256], {%r36, %r37};)");
    const CUdeviceptr da = upload(a), db = upload(b), dc = upload(c), dd = upload(std::vector<float>(128));
    for (const char *arrival : {"arrival=early", "arrival=late"}) {
        ASSERT_EQ(configure(arrival), 0);
        ASSERT_EQ(run(text, {}, {32}, 768, {da, db, dc, dd}), 0) << last_error();
        EXPECT_EQ(download<float>(dd, 128), expected);
    }
    EXPECT_EQ(instructions("mma.sync"), 2u);
    EXPECT_EQ(instructions("ldmatrix"), 4u);
}

TEST_P(MatrixTest, SumsAreRoundedOnce) {
    // In row 0 and column 0: 2^-8 2^-8 + 2^15 2^15 - 2^15 2^15, which leaves nothing where every sum is rounded to
    // float.
    const uint32_t large = narrow(0x1p15f), small = narrow(0x1p-8f);
    const CUdeviceptr out = upload(std::vector<float>(1));
    const std::string text = ptx(
        1, load_parameters(1) + "mov.u32 %r0, %laneid; setp.eq.u32 %p1, %r0, 0; mov.b32 %r4, 0;\n" + "selp.b32 %r1, " +
               to_string(small) + ", 0, %p1;\n" + "selp.b32 %r2, " + to_string(large | (large | 0x8000) << 16) +
               ", 0, %p1;\n" + "selp.b32 %r3, " + to_string(large | large << 16) + ", 0, %p1;\n" + mma() +
               "{%r10, %r11, %r12, %r13}, {%r1, %r4, %r2, %r4}, {%r1, %r3}, {%r4, %r4, %r4, %r4};\n" +
               "@%p1 st.global.f32 [%d0], %r10;");
    ASSERT_EQ(run(text, {}, {32}, 0, {out}), 0) << last_error();
    EXPECT_EQ(download<float>(out, 1)[0], 0x1p-16f);
}

TEST_P(MatrixTest, OneMatrixAndItsTranspose) {
    const CUdeviceptr out = upload(std::vector<uint32_t>(64));
    // Element (i, j) is 8 i + j, written two at a time.
    const std::string text = ptx(1, load_parameters(1) + R"(
        mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, dynamic; add.u32 %r3, %r2, %r1;
        shl.b32 %r4, %r0, 1; add.u32 %r5, %r4, 1; shl.b32 %r5, %r5, 16; or.b32 %r4, %r4, %r5;
        st.shared.b32 [%r3], %r4; bar.sync 0;
        and.b32 %r6, %r0, 7; shl.b32 %r6, %r6, 4; add.u32 %r6, %r6, %r2;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r6];
        ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r8}, [%r6];
        mul.wide.u32 %d1, %r0, 8; add.u64 %d1, %d1, %d0; st.global.v2.b32 [%d1], {%r7, %r8};)");
    ASSERT_EQ(run(text, {}, {32}, 128, {out}), 0) << last_error();
    const std::vector<uint32_t> words = download<uint32_t>(out, 64);
    for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t row = lane / 4, column = lane % 4 * 2;
        EXPECT_EQ(words[2 * lane], (row * 8 + column) | (row * 8 + column + 1) << 16);
        EXPECT_EQ(words[2 * lane + 1], (column * 8 + row) | ((column + 1) * 8 + row) << 16);
    }
}

// Where the 128-byte swizzle has element `i` of a row of 64.
size_t swizzled(size_t row, size_t i) { return row * 64 + ((i / 8) ^ (row % 8)) * 8 + i % 8; }

// A 64 x 16 product of four warps: from shared memory with rows of b over the terms, and from registers with rows of b
// over the columns; then both are added once more.
TEST_P(MatrixTest, ProductsOfWarpgroups) {
    std::vector<uint16_t> shared(4096 + 1024 + 1024);
    std::vector<float> expected(128 * 8);
    for (int k = 0; k < 16; k++) {
        for (int i = 0; i < 64; i++) shared[swizzled(i, k)] = narrow(value(i, k));
        for (int j = 0; j < 16; j++) {
            shared[4096 + swizzled(j, k)] = shared[5120 + swizzled(k, j)] = narrow(value(k + 3, j * 5));
        }
    }
    for (int thread = 0; thread < 128; thread++) {
        for (int n = 0; n < 8; n++) {
            const int i = thread / 32 * 16 + thread % 32 / 4 + n % 4 / 2 * 8, j = n / 4 * 8 + thread % 4 * 2 + n % 2;
            for (int k = 0; k < 16; k++) expected[thread * 8 + n] += 3 * value(i, k) * value(k + 3, j * 5);
        }
    }
    const std::string type = brain() ? "bf16" : "f16",
                      product = "wgmma.mma_async.sync.aligned.m64n16k16.f32." + type + "." + type;
    const std::string sums = " {%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}, ";
    std::string text = ptx(2, load_parameters(2) + R"(
        mov.u32 %r0, %tid.x; mov.u32 %r1, dynamic; shl.b32 %r2, %r0, 4; add.u32 %r3, %r1, %r2;
        cvt.u64.u32 %d2, %r2; add.u64 %d2, %d0, %d2;
        cp.async.cg.shared.global [%r3], [%d2], 16; cp.async.cg.shared.global [%r3+2048], [%d2+2048], 16;
        cp.async.cg.shared.global [%r3+4096], [%d2+4096], 16; cp.async.cg.shared.global [%r3+6144], [%d2+6144], 16;
        cp.async.cg.shared.global [%r3+8192], [%d2+8192], 16; cp.async.cg.shared.global [%r3+10240], [%d2+10240], 16;
        cp.async.commit_group; cp.async.wait_group 0; fence.proxy.async.shared::cta; bar.sync 0;
        // a: rows of its warp; chunks 0 and 1 of row g are at g and 1 ^ g
        shr.u32 %r4, %r0, 5; shl.b32 %r4, %r4, 11; add.u32 %r4, %r4, %r1; shr.u32 %r5, %r0, 2; and.b32 %r5, %r5, 7;
        shl.b32 %r6, %r5, 7; add.u32 %r4, %r4, %r6; and.b32 %r7, %r0, 3; shl.b32 %r7, %r7, 2; add.u32 %r4, %r4, %r7;
        shl.b32 %r8, %r5, 4; add.u32 %r8, %r8, %r4; xor.b32 %r9, %r5, 1; shl.b32 %r9, %r9, 4; add.u32 %r9, %r9, %r4;
        ld.shared.b32 %r10, [%r8]; ld.shared.b32 %r11, [%r8+1024]; ld.shared.b32 %r12, [%r9]; ld.shared.b32 %r13, [%r9+1024];
        cvt.u64.u32 %d3, %r1; shr.u64 %d3, %d3, 4; or.b64 %d3, %d3, 0x4000004000000000;
        add.u64 %d4, %d3, 512; add.u64 %d5, %d3, 640;
        setp.ne.u32 %p1, 0, 0; setp.ne.u32 %p2, 1, 0;
        wgmma.fence.sync.aligned;
        )" + product + sums + "%d3, %d4, %p1, 1, 1, 0, 0;\n" +
                                  product + sums + "%d3, %d4, %p2, 1, 1, 0, 0;\n" + product + sums +
                                  "{%r10, %r11, %r12, %r13}, %d5, %p2, 1, 1, 1;\n" + R"(
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
        shl.b32 %r2, %r0, 5; cvt.u64.u32 %d6, %r2; add.u64 %d6, %d1, %d6;
        st.global.v4.b32 [%d6], {%r20, %r21, %r22, %r23}; st.global.v4.b32 [%d6+16], {%r24, %r25, %r26, %r27};)");
    text.replace(text.find("sm_80"), 5, "sm_90a");
    const CUdeviceptr in = upload(shared), out = upload(std::vector<float>(128 * 8));
    const std::string wait = "wgmma.wait_group.sync.aligned 0;";
    for (const char *when : {"products=early", "products=late"}) {
        ASSERT_EQ(configure(when), 0);
        ASSERT_EQ(run(text, {}, {128}, 12288, {in, out}), 0) << last_error();
        EXPECT_EQ(download<float>(out, 128 * 8), expected) << when;
    }
    // Nothing waits: the sums are what they were.
    text.erase(text.find(wait), wait.size());
    ASSERT_EQ(run(text, {}, {128}, 12288, {in, out}), 0) << last_error();
    EXPECT_NE(download<float>(out, 128 * 8), expected);
}

INSTANTIATE_TEST_SUITE_P(Formats, MatrixTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool> &format) { return format.param ? "bf16" : "f16"; });

TEST_F(DeviceTest, CopiesFillWithZeros) {
    std::vector<uint32_t> words(8);
    for (uint32_t i = 0; i < 8; i++) words[i] = 0x11111111 * (i + 1);
    // Thread t copies 4 t bytes of 16; the last one, at the end of the allocation, none.
    const CUdeviceptr in = upload(words), out = upload(std::vector<uint32_t>(20));
    const std::string text = ptx(2, load_parameters(2) + R"(
        mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 4; mov.u32 %r2, dynamic; add.u32 %r2, %r2, %r1;
        shl.b32 %r3, %r0, 2; setp.eq.u32 %p1, %r0, 4; selp.b32 %r3, 0, %r3, %p1;
        selp.b64 %d2, 32, 0, %p1; add.u64 %d2, %d2, %d0;
        cp.async.cg.shared.global [%r2], [%d2], 16, %r3;
        cp.async.wait_all;
        ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r2];
        cvt.u64.u32 %d3, %r1; add.u64 %d3, %d3, %d1; st.global.v4.b32 [%d3], {%r4, %r5, %r6, %r7};)");
    for (const char *arrival : {"arrival=early", "arrival=late"}) {
        ASSERT_EQ(configure(arrival), 0);
        ASSERT_EQ(run(text, {}, {5}, 80, {in, out}), 0) << last_error();
        const std::vector<uint32_t> result = download<uint32_t>(out, 20);
        for (uint32_t i = 0; i < 20; i++) EXPECT_EQ(result[i], i < 16 && i % 4 < i / 4 ? words[i % 4] : 0) << i;
    }
    expect_fault(run(ptx(1, load_parameters(1) + "mov.u32 %r1, 5; cp.async.ca.shared.global [dynamic], [%d0], 4, %r1;"),
                     {}, {1}, 16, {in}),
                 cuda_launch_failed, "reads 5 bytes of 4");
}

TEST_F(DeviceTest, LateCopiesShowWhenTheyAreReadEarly) {
    const CUdeviceptr in = upload(std::vector<uint32_t>{7}), out = upload(std::vector<uint32_t>(1));
    const std::string text = ptx(2, load_parameters(2) + R"(
        cp.async.ca.shared.global [dynamic], [%d0], 4; cp.async.commit_group;
        ld.shared.b32 %r1, [dynamic]; st.global.b32 [%d1], %r1;)");
    ASSERT_EQ(configure("checks=off,arrival=early"), 0);
    ASSERT_EQ(run(text, {}, {1}, 4, {in, out}), 0);
    EXPECT_EQ(download<uint32_t>(out, 1)[0], 7u);
    ASSERT_EQ(configure("arrival=late"), 0);
    ASSERT_EQ(run(text, {}, {1}, 4, {in, out}), 0);
    EXPECT_EQ(download<uint32_t>(out, 1)[0], 0xa5a5a5a5u);
}

}  // namespace
}  // namespace heed::device
