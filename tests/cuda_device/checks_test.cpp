// What kernels may not do, each done once.
#include "tests/cuda_device/device.h"

namespace heed::device {
namespace {

class ChecksTest : public DeviceTest {
protected:
    // Runs with two warps; %r0 is the thread, %r1 4 * thread, %d0 an allocation of 256 bytes, %d1 that plus %r1, %r2
    // the dynamic shared memory plus %r1.
    CUresult run_body(const std::string &body, unsigned shared = 1024) {
        const CUdeviceptr memory = upload(std::vector<uint32_t>(64));
        return run(ptx(1, load_parameters(1) + R"(mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; cvt.u64.u32 %d1, %r1;
            add.u64 %d1, %d1, %d0; mov.u32 %r2, dynamic; add.u32 %r2, %r2, %r1;
            )" + body),
                   {}, {64}, shared, {memory});
    }
};

TEST_F(ChecksTest, BoundsOfAllocations) {
    expect_fault(run_body("st.global.u32 [%d1+4], %r0;"), cuda_illegal_address, "thread (63,0,0)");
    expect_fault(run_body("ld.global.u32 %r3, [%d1+-4];"), cuda_illegal_address, "4 bytes before an allocation of 256");
    expect_fault(run_body("ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%d0+256];"), cuda_illegal_address, "256 bytes into");
    expect_fault(run_body("mov.u64 %d2, 64; ld.global.u8 %r3, [%d2];"), cuda_illegal_address, "nothing is allocated");
    EXPECT_EQ(run_body("ld.global.u8 %r3, [%d0+255];"), 0);
}

TEST_F(ChecksTest, FreedMemory) {
    const CUdeviceptr gone = upload(std::vector<uint32_t>(64));
    EXPECT_EQ(call("cuMemFree_v2", gone), 0);
    expect_fault(run(ptx(1, load_parameters(1) + "ld.global.u32 %r1, [%d0];"), {}, {1}, 0, {gone}),
                 cuda_illegal_address, "nothing is allocated");
}

TEST_F(ChecksTest, Alignment) {
    expect_fault(run_body("ld.global.u32 %r3, [%d0+2];"), cuda_illegal_address, "not aligned");
    expect_fault(run_body("ld.global.v2.u32 {%r3, %r4}, [%d0+4];"), cuda_illegal_address, "not aligned");
    expect_fault(run_body("st.shared.u32 [%r2+1], 0;"), cuda_illegal_address, "not aligned");
    expect_fault(run_body("cp.async.ca.shared.global [%r2], [%d1], 8;"), cuda_illegal_address, "not aligned");
    expect_fault(run_body("cp.async.ca.shared.global [%r2], [%d0+2], 4;"), cuda_illegal_address, "not aligned");
    expect_fault(run_body("st.shared.u32 [%r2], 0; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r2];"),
                 cuda_illegal_address, "not aligned");
}

TEST_F(ChecksTest, BoundsOfSharedMemory) {
    expect_fault(run_body("st.shared.u32 [%r2], 0;", 252), cuda_illegal_address, "has 252 bytes");
    expect_fault(run_body("mov.u32 %r3, 0; st.shared.u32 [%r3], 0;"), cuda_illegal_address, "shared memory");
    expect_fault(run_body("ld.shared.u32 %r3, [%r2+-4];"), cuda_illegal_address, "shared memory");
    expect_fault(run_body("st.shared.v4.u32 [dynamic+1024], {%r0, %r0, %r0, %r0};"), cuda_illegal_address,
                 "shared memory");
}

TEST_F(ChecksTest, SharedMemoryNeverWritten) {
    expect_fault(run_body("ld.shared.u32 %r3, [%r2];"), cuda_launch_failed, "never written");
    expect_fault(run_body("st.shared.u8 [%r2], 1; ld.shared.u32 %r3, [%r2];"), cuda_launch_failed, "at byte 1 is read");
    EXPECT_EQ(run_body("st.shared.u32 [%r2], 1; ld.shared.u32 %r3, [%r2];"), 0);
    ASSERT_EQ(configure("checks=off"), 0);
    EXPECT_EQ(run_body("ld.shared.u32 %r3, [%r2];"), 0);
}

TEST_F(ChecksTest, Races) {
    const std::string write = "st.shared.u32 [%r2], %r0;\n",
                      read_other = "xor.b32 %r4, %r2, 128; ld.shared.u32 %r3, [%r4];\n";
    EXPECT_EQ(run_body(write + "bar.sync 0;\n" + read_other), 0) << last_error();
    // A write of another warp, read without a barrier, in any order.
    expect_fault(run_body(write + read_other), cuda_launch_failed, "never written");
    expect_fault(run_body(write + "bar.sync 0;\n" + write + read_other), cuda_launch_failed, "a race");
    // A write after a read by another warp.
    expect_fault(run_body(write + "bar.sync 0;\n" + read_other + write), cuda_launch_failed, "a race");
    expect_fault(run_body(write + "bar.sync 0; setp.lt.u32 %p1, %r0, 32; @!%p1 bra $write;\n" + read_other +
                          "bra $end; $write:\n" + write + "$end:"),
                 cuda_launch_failed, "was read by warp 0");
    EXPECT_EQ(run_body(write + "bar.sync 0;\n" + read_other + "bar.sync 0;\n" + write), 0) << last_error();
    // Two writes.
    expect_fault(run_body("st.shared.u8 [dynamic+3], 1;"), cuda_launch_failed, "was written by warp 0");
    for (const char *order : {"order=descending", "order=random:1"}) {
        ASSERT_EQ(configure(order), 0);
        expect_fault(run_body(write + "bar.sync 0;\n" + read_other + write), cuda_launch_failed, "a race");
    }
}

TEST_F(ChecksTest, AsynchronousCopies) {
    const std::string copy = "cp.async.ca.shared.global [%r2], [%d1], 4;\n", commit = "cp.async.commit_group;\n";
    const std::string wait = "cp.async.wait_group 0;\n", barrier = "bar.sync 0;\n",
                      read = "ld.shared.u32 %r3, [%r2];\n";
    const std::string read_other = "xor.b32 %r4, %r2, 4; ld.shared.u32 %r3, [%r4];\n";
    for (const char *arrival : {"arrival=early", "arrival=late"}) {
        ASSERT_EQ(configure(arrival), 0);
        EXPECT_EQ(run_body(copy + commit + wait + read), 0) << last_error();
        EXPECT_EQ(run_body(copy + commit + wait + barrier + read_other), 0) << last_error();
        EXPECT_EQ(run_body(copy + "cp.async.wait_all;\n" + read), 0) << last_error();
        expect_fault(run_body(copy + commit + read), cuda_launch_failed, "has not been waited for");
        expect_fault(run_body(copy + wait + read), cuda_launch_failed, "has not been waited for");
        expect_fault(run_body(copy + commit + "cp.async.wait_group 1;\n" + read), cuda_launch_failed,
                     "not been waited for");
        expect_fault(run_body(copy + commit + barrier + read_other), cuda_launch_failed, "has not been waited for");
        expect_fault(run_body(copy + commit + barrier + "st.shared.u32 [%r2], 1;"), cuda_launch_failed,
                     "not been waited for");
        expect_fault(run_body(copy + commit + wait + read_other), cuda_launch_failed, "no barrier since its wait");
        // The buffer is still read by the other warp.
        expect_fault(run_body(R"(st.shared.u32 [%r2], 1; setp.lt.u32 %p1, %r0, 32; xor.b32 %r4, %r2, 128; bar.sync 0;
                                 @%p1 ld.shared.u32 %r3, [%r2]; @!%p1 cp.async.ca.shared.global [%r4], [%d1], 4;)"),
                     cuda_launch_failed, "was read by warp 0");
    }
    expect_fault(run_body("cp.async.cg.shared.global [dynamic], [%d0+256], 16;"), cuda_illegal_address,
                 "256 bytes into");
}

TEST_F(ChecksTest, InstructionsOfWholeWarps) {
    const std::string half = "setp.lt.u32 %p1, %r0, 16; @%p1 bra $in; bra $out; $in:\n", end = "\n$out:";
    expect_fault(run_body(half + "bar.sync 0;" + end), cuda_launch_failed, "only 16 of the warp's 32 threads");
    expect_fault(run_body(half + "shfl.sync.bfly.b32 %r3, %r0, 1, 31, -1;" + end), cuda_launch_failed,
                 "those of the mask");
    expect_fault(run_body(half + "vote.sync.any.pred %p2, %p1, -1;" + end), cuda_launch_failed, "those of the mask");
    expect_fault(run_body("setp.lt.u32 %p1, %r0, 16; @%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [dynamic];"),
                 cuda_launch_failed, "only 16");
    EXPECT_EQ(run_body(half + "shfl.sync.bfly.b32 %r3, %r0, 1, 31, 0xffff;" + end), 0) << last_error();
    expect_fault(run_body(half + "shfl.sync.bfly.b32 %r3, %r0, 16, 31, 0xffff;" + end), cuda_launch_failed,
                 "does not take part");
    expect_fault(run_body("setp.lt.u32 %p1, %r0, 16; @%p1 bra.uni $x; $x:"), cuda_launch_failed, "bra.uni");
}

TEST_F(ChecksTest, OtherFaults) {
    expect_fault(run_body("$again: bra $again;"), cuda_launch_failed, "a loop that does not end");
    expect_fault(run_body("trap;"), cuda_launch_failed, "trap");
    expect_fault(run_body("div.u32 %r3, %r0, %r0;"), cuda_launch_failed, "divided by zero");
    expect_fault(run_body("st.global.u32 [%d0], %r0;"), cuda_launch_failed, "stores something else");
    EXPECT_EQ(run_body("st.global.u32 [%d0], 5;"), 0) << last_error();
}

TEST_F(ChecksTest, TheSentenceNamesThePlace) {
    const CUfunction kernel = load(ptx(0, "bar.sync 0;\nmov.u64 %d1, 0;\nld.global.u8 %r1, [%d1];"));
    EXPECT_EQ(launch(kernel, {2, 3, 4}, {4, 4, 4}, 0, {}), cuda_illegal_address);
    EXPECT_EQ(last_error(),
              "kernel k, block (0,0,0), thread (0,0,0), PTX line 14 \"ld.global.u8 %r1, [%d1];\": reads 1 bytes "
              "at 0x0, where nothing is allocated");
    // The context is of no use until the reset.
    CUdeviceptr address = 0;
    EXPECT_EQ(call("cuMemAlloc_v2", &address, size_t{16}), cuda_illegal_address);
    EXPECT_EQ(call("cuCtxSynchronize"), cuda_illegal_address);
    reset();
    EXPECT_EQ(call("cuMemAlloc_v2", &address, size_t{16}), 0);
    EXPECT_EQ(call<uint64_t>("heed_device_launches"), 0u);
}

TEST_F(ChecksTest, WhatIsNotUnderstoodIsRefused) {
    const char *const bodies[] = {
        "frobnicate.b32 %r1, %r2;",
        "add.s32 %r1, %r2;",
        "add.s32 %r1, %r2, %d1;",
        "add.s32 %r1, %r2, %undeclared;",
        "add.rz.f32 %r1, %r2, %r3;",
        "add.f32 %r1, %r2, 1;",
        "mov.u32 %r1, %clock;",
        "mov.u32 %tid.x, 0;",
        "mov.b16 %h1, 0x12345;",
        "bra $nowhere;",
        "call.uni foo;",
        "mul.bf16 %h1, %h2, %h3;",
        "bar.sync 1;",
        "ld.param.u64 %d1, [p0+8];",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%r1,%r2,%r3,%r4}, %d0, %d1, %p1, 1, 1;",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1,%r2,%r3,%r4}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, "
        "{%r1,%r2,%r3,%r4};",
        "cp.async.cg.shared.global [dynamic], [%d0], 8;",
        "@%p1 setp.eq.u32 %p1|%p2, %r1, %r2;",
    };
    for (const char *body : bodies) {
        EXPECT_EQ(load(ptx(1, body)), nullptr) << body;
        EXPECT_EQ(load_result_, cuda_invalid_ptx);
        EXPECT_EQ(last_error().compare(0, 12, "PTX line 12 "), 0) << body << ": " << last_error();
    }
}

}  // namespace
}  // namespace heed::device
