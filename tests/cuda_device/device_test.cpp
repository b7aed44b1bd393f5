// Small kernels: control flow, shared memory, what a warp does together.
#include "tests/cuda_device/device.h"

namespace heed::device {
namespace {

using std::to_string;

// %d9 = the address of word [thread] of %d<i>.
std::string word_address(const std::string &base) {
    return "mov.u32 %r0, %tid.x;\nmul.wide.u32 %d9, %r0, 4;\nadd.u64 %d9, %d9, " + base + ";\n";
}

TEST_F(DeviceTest, VectorAddWithBoundsCheck) {
    constexpr int count = 1000;
    std::vector<float> a(count), b(count);
    for (int i = 0; i < count; i++) a[i] = static_cast<float>(i), b[i] = 0.25f * static_cast<float>(i);
    const CUdeviceptr da = upload(a), db = upload(b), dc = upload(std::vector<float>(count));
    const std::string text = ptx(4, load_parameters(4) + R"(
        cvt.u32.u64 %r3, %d3;
        mov.u32 %r0, %tid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %ctaid.x;
        mad.lo.s32 %r4, %r2, %r1, %r0;
        setp.ge.s32 %p1, %r4, %r3;
        @%p1 bra $done;
        mul.wide.s32 %d4, %r4, 4;
        add.s64 %d5, %d0, %d4; add.s64 %d6, %d1, %d4; add.s64 %d7, %d2, %d4;
        ld.global.nc.f32 %r5, [%d5]; ld.global.f32 %r6, [%d6];
        add.rn.f32 %r7, %r5, %r6;
        st.global.f32 [%d7], %r7;
        $done:)");
    ASSERT_EQ(run(text, {16}, {70}, 0, {da, db, dc, count}), 0);
    const std::vector<float> c = download<float>(dc, count);
    for (int i = 0; i < count; i++) ASSERT_EQ(c[i], a[i] + b[i]) << i;
    EXPECT_EQ(call<uint64_t>("heed_device_launches"), 1u);
    // The last of the 16 blocks has no thread inside; the one before, 15 * 70 > 1000 > 14 * 70, one warp.
    EXPECT_EQ(instructions("st.global"), 14u * 3 + 1);
    EXPECT_EQ(instructions("ret"), 16u * 3);
}

// Thread t writes word t of out and reads word stride * t of in: sectors of 8 words, for each warp its own.
TEST_F(DeviceTest, SectorsOfAccesses) {
    constexpr uint64_t stride = 4;
    const CUdeviceptr in = upload(std::vector<uint32_t>(64 * stride)), out = upload(std::vector<uint32_t>(64));
    const std::string text = ptx(2, load_parameters(2) + R"(
        mov.u32 %r0, %tid.x;
        mul.wide.u32 %d4, %r0, 16; add.s64 %d5, %d0, %d4;
        mul.wide.u32 %d6, %r0, 4; add.s64 %d7, %d1, %d6;
        ld.global.u32 %r1, [%d5];
        st.global.u32 [%d7], %r1;)");
    for (const bool counted : {false, true}) {
        reset();
        ASSERT_EQ(configure(counted ? "traffic=on" : "traffic=off"), 0);
        ASSERT_EQ(run(text, {}, {64}, 0, {in, out}), 0) << last_error();
        EXPECT_EQ(call<uint64_t>("heed_device_sectors", 0), counted ? 64 * stride / 8 : 0);
        EXPECT_EQ(call<uint64_t>("heed_device_sectors", 1), counted ? 8u : 0u);
    }
    ASSERT_EQ(configure("traffic=off"), 0);
}

TEST_F(DeviceTest, LoopsOfDifferentLengths) {
    const CUdeviceptr out = upload(std::vector<uint32_t>(64));
    // Thread t sums 0..t-1, odd threads leave early.
    const std::string text = ptx(1, load_parameters(1) + word_address("%d0") + R"(
        mov.u32 %r1, 0; mov.u32 %r2, 0;
        loop:
        setp.ge.u32 %p1, %r1, %r0;
        @%p1 bra done;
        add.u32 %r2, %r2, %r1; add.u32 %r1, %r1, 1;
        bra.uni loop;
        done:
        and.b32 %r3, %r0, 1;
        setp.ne.u32 %p2, %r3, 0;
        @%p2 exit;
        st.global.u32 [%d9], %r2;)");
    ASSERT_EQ(run(text, {}, {64}, 0, {out}), 0) << last_error();
    const std::vector<uint32_t> sums = download<uint32_t>(out, 64);
    for (uint32_t t = 0; t < 64; t++) EXPECT_EQ(sums[t], t % 2 == 0 ? t * (t - 1) / 2 : 0) << t;
}

TEST_F(DeviceTest, SharedMemoryAcrossABarrier) {
    const CUdeviceptr out = upload(std::vector<uint32_t>(128));
    const std::string text = ptx(1, load_parameters(1) + word_address("%d0") + R"(
        .shared .align 4 .b8 words[512];
        mov.u32 %r1, words; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2;
        st.shared.u32 [%r3], %r0;
        bar.sync 0;
        sub.u32 %r4, 508, %r2; add.u32 %r4, %r4, %r1;
        ld.shared.u32 %r5, [%r4];
        st.global.u32 [%d9], %r5;)");
    for (const char *order : {"order=default", "order=ascending", "order=descending", "order=random:7"}) {
        ASSERT_EQ(configure(order), 0);
        ASSERT_EQ(run(text, {}, {128}, 0, {out}), 0) << last_error();
        const std::vector<uint32_t> words = download<uint32_t>(out, 128);
        for (uint32_t t = 0; t < 128; t++) ASSERT_EQ(words[t], 127 - t);
    }
}

TEST_F(DeviceTest, BarriersReduceAndIgnoreWarpsThatExited) {
    const CUdeviceptr out = upload(std::vector<uint32_t>(96));
    const std::string text = ptx(1, load_parameters(1) + word_address("%d0") + R"(
        setp.ge.u32 %p1, %r0, 64;
        @%p1 ret;
        setp.lt.u32 %p2, %r0, 40;
        bar.red.popc.u32 %r1, 0, %p2;
        bar.red.and.pred %p3, 0, %p2;
        barrier.cta.red.aligned.or.pred %p4, 0, !%p2;
        selp.u32 %r2, 256, 0, %p3; selp.u32 %r3, 512, 0, %p4;
        add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;
        barrier.sync 0;
        st.global.u32 [%d9], %r1;)");
    ASSERT_EQ(run(text, {}, {96}, 0, {out}), 0) << last_error();
    const std::vector<uint32_t> words = download<uint32_t>(out, 96);
    for (uint32_t t = 0; t < 96; t++) EXPECT_EQ(words[t], t < 64 ? 40u + 512 : 0u) << t;
}

TEST_F(DeviceTest, ShufflesAndVotes) {
    const CUdeviceptr out = upload(std::vector<uint32_t>(32 * 8));
    std::string body = load_parameters(1) + R"(
        mov.u32 %r0, %laneid; mul.wide.u32 %d9, %r0, 32; add.u64 %d9, %d9, %d0;
        mul.lo.u32 %r1, %r0, 10;
        shfl.sync.bfly.b32 %r2, %r1, 5, 31, -1;
        shfl.sync.up.b32 %r3|%p1, %r1, 3, 0, 0xffffffff;
        shfl.sync.down.b32 %r4|%p2, %r1, 2, 0x1807, -1;
        shfl.sync.idx.b32 %r5, %r1, 9, 31, -1;
        selp.u32 %r6, 1, 0, %p1; selp.u32 %r7, 2, 0, %p2; or.b32 %r6, %r6, %r7;
        setp.gt.u32 %p3, %r0, 28;
        vote.sync.ballot.b32 %r7, %p3, -1;
        vote.sync.any.pred %p4, %p3, -1; vote.sync.all.pred %p5, !%p3, -1;
        selp.u32 %r8, 1, 0, %p4; selp.u32 %r9, 2, 0, %p5; or.b32 %r8, %r8, %r9;
        @%p3 activemask.b32 %r10;
        @!%p3 mov.u32 %r10, 7;)";
    const int results[] = {2, 3, 4, 5, 6, 7, 8, 10};
    for (int i = 0; i < 8; i++)
        body += "st.global.u32 [%d9+" + to_string(4 * i) + "], %r" + to_string(results[i]) + ";\n";
    ASSERT_EQ(run(ptx(1, body), {}, {32}, 0, {out}), 0) << last_error();
    const std::vector<uint32_t> words = download<uint32_t>(out, 32 * 8);
    for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t *w = &words[lane * 8];
        const bool in_segment = lane % 8 < 6;
        EXPECT_EQ(w[0], (lane ^ 5) * 10);
        EXPECT_EQ(w[1], (lane < 3 ? lane : lane - 3) * 10);
        EXPECT_EQ(w[2], (in_segment ? lane + 2 : lane) * 10) << lane;
        EXPECT_EQ(w[3], 90u);
        EXPECT_EQ(w[4], (lane >= 3 ? 1u : 0u) | (in_segment ? 2u : 0u));
        EXPECT_EQ(w[5], 0xe0000000u);
        EXPECT_EQ(w[6], 1u);
        EXPECT_EQ(w[7], lane > 28 ? 0xe0000000u : 7u);
    }
}

TEST_F(DeviceTest, LocalMemoryGenericAddressesAndScopes) {
    const CUdeviceptr out = upload(std::vector<uint32_t>(40));
    const std::string text = ptx(1, load_parameters(1) + word_address("%d0") + R"(
        .local .align 16 .b8 depot[64];
        .reg .b64 %SP, %SPL;
        mov.u64 %SPL, depot; cvta.local.u64 %SP, %SPL;
        st.local.v2.u32 [%SPL+8], {%r0, %r0};
        { .reg .b32 %r0, name; mov.u32 %r0, 1000; ld.u32 name, [%SP+12]; add.u32 %r1, %r0, name; }
        { .reg .b64 name; cvta.global.u64 name, %d9; st.u32 [name], %r1; bra end; mov.b32 %r1, 0; end: }
        mov.u32 %r2, dynamic+4; cvt.u64.u32 %d1, %r2; cvta.shared.u64 %d2, %d1;
        setp.eq.u32 %p1, %r0, 0;
        @%p1 st.u16 [%d2], 0x1234;
        @%p1 ld.shared.s16 %r3, [dynamic+4];
        @%p1 st.global.u32 [%d0], %r3;)");
    ASSERT_EQ(run(text, {}, {40}, 16, {out}), 0) << last_error();
    const std::vector<uint32_t> words = download<uint32_t>(out, 40);
    for (uint32_t t = 0; t < 40; t++) EXPECT_EQ(words[t], t == 0 ? 0x1234 : 1000 + t);
}

TEST_F(DeviceTest, AtomicsOfManyBlocks) {
    const CUdeviceptr out = upload(std::vector<uint32_t>(6));
    const std::string text = ptx(1, load_parameters(1) + R"(
        atom.global.add.u32 %r1, [%d0], 2;
        red.global.add.f32 [%d0+4], 0f3f000000;
        mov.u32 %r2, %ctaid.x; mov.u32 %r3, %tid.x;
        atom.global.max.s32 %r4, [%d0+8], %r2;
        add.u32 %r5, %r3, 1;
        retry: atom.global.cas.b32 %r6, [%d0+12], 0, %r5;
        setp.ne.u32 %p1, %r6, 0; @%p1 bra skip;
        atom.global.exch.b32 %r7, [%d0+16], %r5; atom.global.exch.b32 %r8, [%d0+12], 0;
        skip: red.global.or.b32 [%d0+20], %r5;)");
    ASSERT_EQ(run(text, {50}, {64}, 0, {out}), 0) << last_error();
    const std::vector<uint32_t> words = download<uint32_t>(out, 6);
    EXPECT_EQ(words[0], 2u * 50 * 64);
    EXPECT_EQ(words[1], 0x44c80000u);  // 1600
    EXPECT_EQ(words[2], 49u);
    EXPECT_EQ(words[3], 0u);
    EXPECT_NE(words[4], 0u);
    EXPECT_EQ(words[5], 127u);
}

TEST_F(DeviceTest, WideLoadsAndStores) {
    std::vector<uint32_t> words(32);
    for (uint32_t i = 0; i < 32; i++) words[i] = 0x80818283u + i;
    const CUdeviceptr in = upload(words), out = upload(std::vector<uint32_t>(32));
    const std::string text = ptx(2, load_parameters(2) + R"(
        .reg .b128 %q; .reg .b64 %x, %y;
        ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d0];
        st.global.v2.u32 [%d1], {%r4, %r3};
        ld.global.b128 %q, [%d0+16]; mov.b128 {%x, %y}, %q; mov.b128 %q, {%y, %x}; st.global.b128 [%d1+16], %q;
        ld.global.s8 %r5, [%d0+1]; ld.global.u8 %h1, [%d0+1]; ld.global.s16 %d5, [%d0+2];
        st.global.u32 [%d1+32], %r5; st.global.u16 [%d1+36], %h1; st.global.u8 [%d1+38], %r5; st.global.u64 [%d1+40], %d5;
        ld.global.v4.u8 {%h2, %h3, %h4, %h5}, [%d0]; st.global.v2.u16 [%d1+48], {%h5, %h2};)");
    ASSERT_EQ(run(text, {}, {1}, 0, {in, out}), 0) << last_error();
    const std::vector<uint32_t> w = download<uint32_t>(out, 32);
    EXPECT_EQ(w[0], words[3]);
    EXPECT_EQ(w[1], words[2]);
    for (int i = 0; i < 4; i++) EXPECT_EQ(w[4 + i], words[4 + (i + 2) % 4]);
    EXPECT_EQ(w[8], 0xffffff82u);
    EXPECT_EQ(w[9], 0x00820082u);
    EXPECT_EQ(w[10], 0xffff8081u);
    EXPECT_EQ(w[11], 0xffffffffu);
    EXPECT_EQ(w[12], 0x00830080u);
}

}  // namespace
}  // namespace heed::device
