// What the passes for tensors at addresses make of small kernels, and what they refuse.
#include <gtest/gtest.h>

#include "generators/common/bad_input.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "tests/codegen/device_kernel.h"

namespace {

using namespace Halide;

// Copies chunks of `width` elements of 16 bits that begin with element `skip` of a chunk.
std::map<std::string, int> copied(int width, int skip) {
    DeviceKernel kernel;
    RDom all(0, width, 0, kernel.count, "all");
    const Expr i = all.y * width + all.x + skip;
    kernel.add(heed::store_at(kernel.to, i, heed::load_at(UInt(16), kernel.from, i)));
    RVar block{"block"}, thread{"thread"};
    kernel.named.update()
        .split(all.y, block, thread, heed::cuda_op_threads, TailStrategy::GuardWithIf)
        .gpu_blocks(block)
        .gpu_threads(thread)
        .unroll(all.x)
        .never_partition_all();
    return instructions(heed::compile_cuda(device_spec("copied"), kernel));
}

TEST(DeviceMemory, NeighboursAreOneAccess) {
    const auto found = copied(8, 0);
    EXPECT_EQ(found.at("heed_load_fragment"), 1);
    EXPECT_EQ(found.at("heed_store_fragment"), 1);
    EXPECT_EQ(found.count("heed_load_u16"), 0U);
    EXPECT_EQ(found.count("heed_store_u16"), 0U);
}

TEST(DeviceMemory, UnalignedNeighboursAreNot) {
    const auto found = copied(8, 1);
    EXPECT_EQ(found.count("heed_load_fragment"), 0U);
    EXPECT_EQ(found.at("heed_load_u16") + 2 * found.at("heed_load_i32"), 8);
}

TEST(DeviceMemory, StoresWhereNothingIsAreAtomic) {
    DeviceKernel kernel;
    RDom all(0, kernel.count, "all");
    kernel.add(heed::store_at_if_zero(all == 3, kernel.to, cast<uint32_t>(all)));
    RVar block{"block"}, thread{"thread"};
    kernel.named.update()
        .split(all, block, thread, heed::cuda_op_threads, TailStrategy::GuardWithIf)
        .gpu_blocks(block)
        .gpu_threads(thread)
        .never_partition_all();
    const auto found = instructions(heed::compile_cuda(device_spec("reported"), kernel));
    EXPECT_EQ(found.at("heed_store_u32_if_zero"), 1);
    EXPECT_EQ(found.count("heed_store_u32"), 0U);
}

TEST(DeviceMemory, ConditionsOfStoresMayLoad) {
    DeviceKernel kernel;
    RDom all(0, kernel.count, "all");
    kernel.add(heed::store_at_if(heed::load_at(Int(32), kernel.from, all) > 0, kernel.to, all, cast<int32_t>(all)));
    RVar block{"block"}, thread{"thread"};
    kernel.named.update()
        .split(all, block, thread, heed::cuda_op_threads, TailStrategy::GuardWithIf)
        .gpu_blocks(block)
        .gpu_threads(thread)
        .never_partition_all();
    const auto found = instructions(heed::compile_cuda(device_spec("chosen"), kernel));
    EXPECT_EQ(found.at("heed_load_i32"), 1);
    EXPECT_EQ(found.at("heed_store_u32"), 1);
}

// A block turns a row of elements around.
void turn_rows(MemoryType memory) {
    DeviceKernel kernel;
    constexpr int threads = heed::cuda_op_threads;
    Var x{"x"}, y{"y"};
    Func row{"row"};
    RDom all(0, threads, 0, kernel.count, "all");
    row(x, y) = heed::load_at(UInt(16), kernel.from, y * threads + x);
    kernel.add(heed::store_at(kernel.to, all.y * threads + all.x, row(threads - 1 - all.x, all.y)));
    kernel.named.update().gpu_blocks(all.y).gpu_threads(all.x).never_partition_all();
    row.compute_at(kernel.named, all.y).store_in(memory).bound_extent(x, threads).gpu_threads(x);
    const auto found =
        instructions(heed::compile_cuda(device_spec("turned"), kernel, threads, [](heed::Passes &passes) {
            passes.add<heed::LowerSharedMemory>(2 * threads);
        }));
    for (const char *name : {"load_u16", "store_shared_u16", "load_shared_u16", "store_u16"}) {
        EXPECT_EQ(found.at(std::string("heed_") + name), 1) << name;
    }
}

TEST(DeviceMemory, ElementsGoThroughSharedMemory) {
    turn_rows(MemoryType::GPUShared);
    turn_rows(MemoryType::Stack);  // with a place of their own
}

// to[row] = what `combine` makes of 32 elements of a row, by the lanes of a warp.
Module reduced(const std::function<Expr(Expr, Expr)> &combine) {
    DeviceKernel kernel;
    Var row{"row"};
    Func total{"total"};
    RDom over(0, 32, "over"), all(0, 32, 0, kernel.count, "all");
    total(row) = 0.f;
    total(row) = combine(total(row), heed::load_at(Float(32), kernel.from, row * 32 + over));
    kernel.add(heed::store_at(kernel.to, all.y * 32 + all.x, total(all.y)));
    RVar block{"block"}, warp{"warp"}, thread{"thread"}, lanes{"lanes"}, one{"one"};
    kernel.named.update()
        .split(all.y, block, warp, heed::cuda_op_threads / 32, TailStrategy::GuardWithIf)
        .fuse(all.x, warp, thread)
        .gpu_blocks(block)
        .gpu_threads(thread)
        .never_partition_all();
    total.compute_at(kernel.named, thread)
        .store_in(MemoryType::Register)
        .bound_extent(row, 1)
        .update()
        .split(over, one, lanes, 32, TailStrategy::GuardWithIf)
        .never_partition_all();
    return heed::compile_cuda(device_spec("reduced"), kernel);
}

TEST(Lanes, SumsAndMaximaAreFiveExchanges) {
    for (const bool is_sum : {true, false}) {
        const auto found =
            instructions(reduced([&](const Expr &a, const Expr &b) { return is_sum ? a + b : max(a, b); }));
        int exchanges = 0;
        for (const auto &[name, count] : found) exchanges += name.rfind("heed_from_lane", 0) == 0 ? count : 0;
        EXPECT_EQ(exchanges, 5);
    }
}

TEST(Lanes, RefuseOtherUpdates) {
    EXPECT_THROW(reduced([](const Expr &a, const Expr &b) { return a * b; }), heed::BadInput);
}

TEST(JoinLaunches, RefusesOtherNumbersOfThreads) {
    DeviceKernel kernel;
    RDom all(0, kernel.count, "all");
    kernel.add(heed::store_at(kernel.to, all, heed::load_at(UInt(16), kernel.from, all)));
    RVar block{"block"}, thread{"thread"};
    kernel.named.update()
        .split(all, block, thread, 64, TailStrategy::GuardWithIf)
        .gpu_blocks(block)
        .gpu_threads(thread)
        .never_partition_all();
    EXPECT_THROW(heed::compile_cuda(device_spec("copied"), kernel), heed::BadInput);
}

// One search finds both words of an entry.
TEST(EntryWords, AreFoundByBranches) {
    DeviceKernel kernel;
    const heed::WordParams list("word", 4, 2);
    RDom all(0, heed::cuda_op_threads, 0, kernel.count, "all");
    kernel.add(heed::store_at(heed::entry_word(list, all.y, 0), all.x,
                              heed::load_at(UInt(16), heed::entry_word(list, all.y, 1), all.x)));
    kernel.named.update().gpu_blocks(all.y).gpu_threads(all.x).never_partition_all();
    struct WithWords : DeviceKernel {
        std::vector<Argument> words;
        std::vector<Argument> arguments() const { return words; }
    } with;
    static_cast<DeviceKernel &>(with) = kernel;
    with.words = kernel.arguments();
    with.words.insert(with.words.end(), list.words.begin(), list.words.end());
    const auto found = instructions(heed::compile_cuda(device_spec("found"), with));
    EXPECT_EQ(found.at("heed_load_u16"), 1);
    EXPECT_EQ(found.at("heed_store_u16"), 1);
}

}  // namespace
