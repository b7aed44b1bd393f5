// What the passes for tiles in shared memory and registers make of a small product of a warp, and what they refuse.
#include <gtest/gtest.h>

#include "generators/attention/logits.h"
#include "generators/common/bad_input.h"
#include "generators/lowering/carried.h"
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/pipeline_copies.h"
#include "generators/lowering/cuda/place_over.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/replace_in_place.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/cuda/tile_products.h"
#include "tests/codegen/device_kernel.h"

namespace {

using namespace Halide;

// 16 rows times 16 columns, in steps of 16 elements of f16, by 32 threads.
struct ProductKernel : DeviceKernel {
    Var k{"k"}, chunk{"chunk"}, row{"row"}, column{"column"}, step{"step"}, block{"block"};
    RDom over_k{0, 8, 0, 2, 0, count, "over_k"}, all{0, 16, 0, 16, 0, count, "all"};
    Func a{"a"}, b{"b"}, sum{"sum"};

    ProductKernel() {
        const auto element = [&](const Expr &line) {
            return heed::load_at(UInt(16), from, ((line * count + step) * 2 + chunk) * 8 + k);
        };
        const auto value = [](const Expr &stored) { return heed::to_float(heed::ElementType::f16, stored); };
        a(k, chunk, row, step) = element(row);
        b(k, chunk, column, step) = element(column + 16);
        sum(column, row, block) = 0.f;
        sum(column, row, block) +=
            value(a(over_k.x, over_k.y, row, over_k.z)) * value(b(over_k.x, over_k.y, column, over_k.z));
        add(heed::store_at(to, (all.z * 16 + all.y) * 16 + all.x, sum(all.x, all.y, all.z)));
    }
};

struct Deal {
    std::vector<VarOrRVar> own;
    VarOrRVar thread;
};

// Lane 4 g + q has rows g + 8 i and columns 8 j + 2 q and 8 j + 2 q + 1.
Deal in_fragments(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    const auto v = [&](const char *name) { return VarOrRVar(name, column.is_rvar); };
    stage.split(column, v("j"), v("inner"), 8)
        .split(v("inner"), v("q"), v("pair"), 2)
        .split(row, v("i"), v("g"), 8)
        .fuse(v("q"), v("g"), v("thread"));
    return {{v("pair"), v("j"), v("i")}, v("thread")};
}

// Lanes 2 i and 2 i + 1 have the halves of row i.
Deal in_rows(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    const auto v = [&](const char *name) { return VarOrRVar(name, column.is_rvar); };
    stage.split(column, v("half"), v("j"), 8).split(v("j"), v("eight"), v("pair"), 2).fuse(v("half"), row, v("thread"));
    return {{v("pair"), v("eight")}, v("thread")};
}

struct Options {
    Deal (*of_sum)(Stage, const VarOrRVar &, const VarOrRVar &) = in_fragments;
    Deal (*of_results)(Stage, const VarOrRVar &, const VarOrRVar &) = in_fragments;
    int copied = 8;     // elements at once
    bool ahead = true;  // copies
    int buffers = 2;    // that LowerSharedMemory is told of
};

std::map<std::string, int> product(const Options &options) {
    ProductKernel kernel;
    const auto order = [](Stage stage, Deal deal, const std::vector<VarOrRVar> &outer, bool unrolled) {
        if (unrolled) {
            for (const VarOrRVar &own : deal.own) stage.unroll(own);
        }
        deal.own.insert(deal.own.end(), outer.begin(), outer.end());
        stage.reorder(deal.own).gpu_threads(deal.thread).never_partition_all();
    };
    Stage results = kernel.named.update(), products = kernel.sum.update();
    const Deal of_all = options.of_results(results, kernel.all.x, kernel.all.y);
    order(results.gpu_blocks(kernel.all.z), of_all, {of_all.thread, kernel.all.z}, true);
    kernel.sum.compute_at(kernel.named, kernel.all.z)
        .store_in(MemoryType::Register)
        .bound_extent(kernel.column, 16)
        .bound_extent(kernel.row, 16)
        .bound_extent(kernel.block, 1);
    const Deal of_zeros = options.of_sum(kernel.sum, kernel.column, kernel.row);
    order(kernel.sum, of_zeros, {of_zeros.thread}, true);
    const Deal of_products = options.of_sum(products, kernel.column, kernel.row);
    order(products, of_products, {kernel.over_k.x, kernel.over_k.y, of_products.thread, kernel.over_k.z}, false);
    for (Func tile : {kernel.a, kernel.b}) {
        const Var line = tile.args()[2], thread("thread"), outer("outer");
        tile.compute_at(kernel.sum, kernel.over_k.z)
            .store_in(MemoryType::GPUShared)
            .bound_extent(kernel.k, 8)
            .bound_extent(kernel.chunk, 2)
            .bound_extent(line, 16)
            .bound_extent(kernel.step, 1)
            .fuse(kernel.chunk, line, thread)
            .split(kernel.k, outer, kernel.k, options.copied)
            .vectorize(kernel.k)
            .unroll(outer)
            .gpu_threads(thread)
            .never_partition_all();
    }
    return instructions(heed::compile_cuda(device_spec("product"), kernel, 32, [&](heed::Passes &passes) {
        if (options.ahead) passes.add_exactly<heed::PipelineCopies>(1, "loops");
        passes.add_exactly<heed::LowerTileProducts>(1, "products", 32);
        passes.add<heed::PrivateRegisters>();
        passes.add<heed::DropBarriers>();
        passes.add<heed::LowerSharedMemory>(options.buffers * 2 * 16 * 32);
    }));
}

// Two tiles of 16 x 8 for each step, of two loads of four 8 x 8 matrices.
TEST(TileProducts, AreThoseOfTensorCores) {
    const auto found = product({});
    EXPECT_EQ(found.at("heed_mma_f16"), 2);
    EXPECT_EQ(found.at("heed_load_matrices"), 2);
}

TEST(TileProducts, RefuseOtherDeals) {
    Options options;
    options.of_sum = options.of_results = in_rows;
    EXPECT_THROW(product(options), heed::BadInput);
}

// A thread copies a chunk of each tile before the loop and in it.
TEST(PipelineCopies, AreOneStepAhead) {
    const auto found = product({});
    EXPECT_EQ(found.at("heed_copy_async"), 4);
    EXPECT_EQ(found.at("heed_commit_copies"), 2);
    EXPECT_EQ(found.at("heed_wait_copies"), 1);
    EXPECT_EQ(found.at("bar.sync"), 1);
}

TEST(SharedMemory, IsCopiedToInChunksOfItsStep) {
    Options options;
    options.ahead = false;
    options.buffers = 1;
    const auto found = product(options);
    EXPECT_EQ(found.at("heed_load_fragment"), 2);
    EXPECT_EQ(found.at("heed_store_shared_fragment"), 2);
    EXPECT_EQ(found.count("heed_copy_async"), 0U);
}

TEST(SharedMemory, RefusesOtherVectors) {
    Options options;
    options.copied = 4;
    EXPECT_THROW(product(options), heed::BadInput);
}

TEST(SharedMemory, RefusesOtherBytesThanTheKernelHas) {
    Options options;
    options.buffers = 1;
    EXPECT_THROW(product(options), heed::BadInput);
}

// Before the step's tiles are written, and before they are read.
TEST(Barriers, AreWhereSharedMemoryNeedsThem) {
    Options options;
    options.ahead = false;
    options.buffers = 1;
    EXPECT_EQ(product(options).at("bar.sync"), 2);
}

// Two stages of the first 16 threads: the barrier between them is no part of their branches, which LLVM would join.
TEST(Barriers, StayOutsideBranchesOfThreads) {
    DeviceKernel kernel;
    const Var i("i"), block("block");
    const RDom all(0, 32, 0, kernel.count, "all");
    Func read("read"), first("first"), second("second");
    read(i, block) = heed::load_at(Float(32), kernel.from, block * 32 + i);
    first(i, block) = read(i, block) + read(31 - i, block);
    second(i, block) = first(i, block) + first(15 - i, block);
    kernel.add(heed::store_at(kernel.to, all.y * 32 + all.x, second(all.x / 2, all.y)));
    kernel.named.update().gpu_blocks(all.y).gpu_threads(all.x).never_partition_all();
    for (Func f : {read, first, second}) {
        const int extent = f.name() == read.name() ? 32 : 16;
        computed(f, {kernel.named, all.y}, MemoryType::Stack, {{i, extent}, {block, 1}}).gpu_threads(i);
    }
    const auto found = instructions(heed::compile_cuda(device_spec("halves"), kernel, 32, [&](heed::Passes &passes) {
        passes.add<heed::DropBarriers>();
        passes.add<heed::LowerSharedMemory>(4 * (32 + 16 + 16));
    }));
    EXPECT_EQ(found.at("bar.sync"), 3);
}

// Thread 31 - i stores twice what thread i has read, or what another one has.
std::map<std::string, int> two_stages(bool own) {
    DeviceKernel kernel;
    const Var i("i"), block("block");
    const RDom all(0, 32, 0, kernel.count, "all");
    Func read("read"), made("made");
    read(i, block) = heed::load_at(Float(32), kernel.from, block * 32 + i);
    made(i, block) = read(own ? Expr(i) : 31 - i, block) * 2.f;
    kernel.add(heed::store_at(kernel.to, all.y * 32 + all.x, made(31 - all.x, all.y)));
    kernel.named.update().gpu_blocks(all.y).gpu_threads(all.x).never_partition_all();
    for (Func f : {read, made}) {
        computed(f, {kernel.named, all.y}, MemoryType::Stack, {{i, 32}, {block, 1}}).gpu_threads(i);
    }
    return instructions(heed::compile_cuda(device_spec("two_stages"), kernel, 32, [&](heed::Passes &passes) {
        passes.add_exactly<heed::ReplaceInPlace>(1, "arrays", made.name(), read.name());
        passes.add<heed::DropBarriers>();
        passes.add<heed::LowerSharedMemory>(4 * 32);
    }));
}

TEST(ReplaceInPlace, StagesHaveOneArray) {
    const auto found = two_stages(true);
    EXPECT_EQ(found.at("heed_store_shared_u32"), 2);
    EXPECT_EQ(found.at("heed_load_shared_u32"), 2);
}

TEST(ReplaceInPlace, RefusesOtherElements) { EXPECT_THROW(two_stages(false), heed::BadInput); }

// Three stages, the last one of so many elements. It has the place of the first one, or that one a half of its place.
using When = heed::PlaceOver::When;
std::map<std::string, int> three_stages(int elements, When when, bool reads_first = false) {
    DeviceKernel kernel;
    const Var i("i"), block("block"), round("round"), thread("thread");
    const RDom all(0, 32, 0, kernel.count, "all");
    Func first("first"), second("second"), last("last");
    first(i, block) = heed::load_at(Float(32), kernel.from, block * 32 + i);
    second(i, block) = first(31 - i, block) * 2.f;
    last(i, block) = second(i % 32, block) + 1.f;
    const Expr result = last(elements - 1 - all.x, all.y) + (reads_first ? first(all.x, all.y) : Expr(0.f));
    kernel.add(heed::store_at(kernel.to, all.y * 32 + all.x, result));
    kernel.named.update().gpu_blocks(all.y).gpu_threads(all.x).never_partition_all();
    for (Func f : {first, second, last}) {
        const int extent = f.name() == last.name() ? elements : 32;
        computed(f, {kernel.named, all.y}, MemoryType::Stack, {{i, extent}, {block, 1}})
            .split(i, round, thread, 32)
            .gpu_threads(thread);
    }
    return instructions(heed::compile_cuda(device_spec("three_stages"), kernel, 32, [&](heed::Passes &passes) {
        const bool is_before = when == When::before_copies;
        const std::string of_first = first.name(), of_last = last.name();
        passes.add_exactly<heed::PlaceOver>(1, "arrays", is_before ? of_first : of_last, is_before ? of_last : of_first,
                                            when);
        passes.add<heed::DropBarriers>();
        passes.add<heed::LowerSharedMemory>(4 * (32 + elements));
    }));
}

TEST(PlaceOver, ArraysHaveOnePlace) {
    EXPECT_EQ(three_stages(32, When::after).at("bar.sync"), 3);
    EXPECT_EQ(three_stages(64, When::before_copies).at("bar.sync"), 3);
}

TEST(PlaceOver, RefusesWhatIsNotUsedUp) {
    EXPECT_THROW(three_stages(32, When::after, true), heed::BadInput);
    EXPECT_THROW(three_stages(64, When::before_copies, true), heed::BadInput);
}

TEST(PlaceOver, RefusesWhatDoesNotFit) {
    EXPECT_THROW(three_stages(64, When::after), heed::BadInput);
    EXPECT_THROW(three_stages(32, When::before_copies), heed::BadInput);
}

// Sums of rows over steps, which stay in shared memory; the results are those after the last step.
std::map<std::string, int> carried_sums() {
    DeviceKernel kernel;
    Var row{"row"}, step{"step"}, block{"block"};
    Func sum{"sum"}, state{"state"}, last{"last"};
    RDom steps(0, kernel.count, "steps"), all(0, 32, 0, 1, "all");
    const Expr element = heed::load_at(Float(32), kernel.from, step * 32 + row);
    sum(row, step, block) = heed::branched(step == 0, 0.f, heed::carried(sum, row, step)) + element;
    state(row, block) = 0.f;
    state(row, block) += heed::once(cast<float>(steps), sum(row, steps, block));
    last(row, block) = heed::once(heed::carried(sum, row, kernel.count), state(row, block));
    kernel.add(heed::store_at(kernel.to, all.x, last(all.x, all.y)));
    kernel.named.update().gpu_blocks(all.y).gpu_threads(all.x).never_partition_all();
    last.compute_at(kernel.named, all.y).store_in(MemoryType::Stack).bound_extent(row, 32).gpu_threads(row);
    state.compute_at(kernel.named, all.y).store_in(MemoryType::Register).bound_extent(row, 32).gpu_threads(row);
    state.update().reorder(row, steps.x).gpu_threads(row).never_partition_all();
    sum.compute_at(state, steps.x).store_in(MemoryType::Stack).bound_extent(row, 32).gpu_threads(row);
    for (Func f : {sum, state, last}) f.bound_extent(block, 1);
    return instructions(heed::compile_cuda(device_spec("carried_sums"), kernel, 32, [&](heed::Passes &passes) {
        passes.add<heed::LoadCarried>(sum.name());
        passes.add<heed::PrivateRegisters>();
        passes.add<heed::DropBarriers>();
        passes.add<heed::LowerSharedMemory>(2 * 4 * 32);
    }));
}

TEST(LoadCarried, ReadsWhatTheStepBeforeHasLeft) {
    const auto found = carried_sums();
    EXPECT_EQ(found.at("heed_store_shared_u32"), 2);  // sum, last
    EXPECT_EQ(found.at("heed_load_shared_u32"), 3);   // the sum before, after the loop, last
}

TEST(PrivateRegisters, RefuseThoseOfAnotherThread) {
    Options options;
    options.of_results = in_rows;
    EXPECT_THROW(product(options), heed::BadInput);
}

}  // namespace
