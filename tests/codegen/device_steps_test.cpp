// What the passes for steps that add products to a state make of a small kernel of a warp, and what they refuse.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "generators/common/bad_input.h"
#include "generators/lowering/carried.h"
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/block_branches.h"
#include "generators/lowering/cuda/linear_terms.h"
#include "generators/lowering/cuda/pipeline_copies.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/repeat_loops.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/cuda/sum_in_registers.h"
#include "generators/lowering/cuda/tile_products.h"
#include "schedules/cuda/tile_product.h"
#include "tests/codegen/device_kernel.h"

namespace {

using namespace Halide;

constexpr int keys = 32;

// Which terms are summed, of a column, a key and the count that the kernel is given; undefined: all.
using TermsSummed = std::function<Expr(const Expr &, const Expr &, const Expr &)>;

// state = state * factor + weights x values, of steps of 32 keys and so many rows; the factor is 1 without one.
// In the repetition weights of some keys are left out. Codes: values are, weights are multiplied by a scale of the key.
struct StepKernel : DeviceKernel {
    const int rows;
    const bool codes;
    const heed::ElementType type = codes ? heed::ElementType::i8 : heed::ElementType::f16;
    const int bytes = codes ? 1 : 2, columns = 32 / bytes, of_lane = codes ? 4 : 2;
    Var d{"d"}, row{"row"}, key{"key"}, step{"step"}, block{"which"}, lane{"of_warp"};
    RDom steps{0, count, "steps"}, over_keys{0, keys, "over_keys"}, all;
    Func values{"values"}, scales{"scales"}, weights{"weights"}, sum{"sum"}, state{"state"}, doubts{"doubts"};

    StepKernel(int rows, bool codes, bool has_factor, const TermsSummed &summed)
        : rows(rows), codes(codes), all(0, columns, 0, rows, 0, count, "all") {
        const Expr stride = cast<uint64_t>(count) * cast<uint64_t>(bytes * columns),
                   is_whole = (from & cast<uint64_t>(15)) == 0;
        const Expr row_of_key = heed::after(heed::after(from, key, stride), step, stride * keys);
        values(d, key, step) =
            heed::load_chunks_if(step * keys + key < count, is_whole, heed::stored_type(type), row_of_key, d);
        scales(key, step) = heed::load_at_if(step * keys + key < count, Float(32), from, step * keys + key);
        const Expr left_out = heed::in_repetition(step) && key > row;
        const Expr weight = reinterpret<uint32_t>(cast<float>(key + step));
        weights(key, row, step) = codes ? reinterpret<float>(weight) * scales(key, step)
                                        : reinterpret<float>(select(left_out, Expr(0x80000000u), weight));
        if (summed) over_keys.where(heed::of_terms(summed(d, over_keys, count)));
        sum(d, row, step) = 0.f;
        const Expr so_far = sum(d, row, step), w = weights(over_keys, row, step);
        const Expr value = heed::to_float(type, values(d, over_keys, step));
        const Expr with = so_far + heed::rounded_on_device(heed::ElementType::f16, w) * value;
        const Expr is_out = heed::in_repetition(step) && reinterpret<uint32_t>(w) == Expr(0x80000000u);
        sum(d, row, step) = codes ? with : select(is_out, so_far, with);
        state(d, row, block) = 0.f;
        Expr scaled = state(d, row, block);
        if (has_factor) scaled = scaled * heed::load_at(Float(32), to, steps);
        state(d, row, block) = scaled + sum(d, row, steps);
        doubts(lane, block) = cast<int32_t>(state(lane % 4 * of_lane, lane / 4, block) > 1.f);
        const Expr doubt = doubts(all.y % 8 * 4 + all.x % (4 * of_lane) / of_lane, all.z);
        add(heed::store_at(to, (all.z * rows + all.y) * columns + all.x,
                           state(all.x, all.y, all.z) + cast<float>(doubt)));
    }
};

struct StepOptions {
    int rows = 32;
    bool codes = false, has_factor = true;
    TermsSummed summed = nullptr;
    const char *turn = "";
};

std::map<std::string, int> steps_of_products(const StepOptions &options = {}) {
    const int rows = options.rows;
    const bool codes = options.codes;
    StepKernel kernel(rows, codes, options.has_factor, options.summed);
    const std::string turn = options.turn == std::string("weights") ? kernel.weights.name() : options.turn;
    const int columns = kernel.columns, chunk_elements = 16 / kernel.bytes, row_elements = columns + chunk_elements;
    const heed::Deal of_weights = rows == 16 ? heed::in_low_fragments : heed::in_fragments;
    const heed::Deal deal = codes ? heed::in_low_fragments_of_codes : of_weights;
    const auto in_tiles = [&](const Stage &stage, const VarOrRVar &column, const VarOrRVar &row,
                              const std::vector<VarOrRVar> &outer) {
        heed::deal_out(stage, deal(stage, column, row), {}, outer);
    };
    const LoopLevel at_step(kernel.state, kernel.steps.x), at_block(kernel.named, kernel.all.z);
    in_tiles(kernel.named.update().gpu_blocks(kernel.all.z), kernel.all.x, kernel.all.y, {kernel.all.z});
    computed(kernel.state, at_block, MemoryType::Register,
             {{kernel.d, columns}, {kernel.row, rows}, {kernel.block, 1}});
    in_tiles(kernel.state, kernel.d, kernel.row, {});
    in_tiles(kernel.state.update(), kernel.d, kernel.row, {kernel.steps.x});
    computed(kernel.doubts, at_block, MemoryType::Register, {{kernel.lane, 32}, {kernel.block, 1}})
        .gpu_threads(kernel.lane);
    computed(kernel.weights, at_step, MemoryType::Register, {{kernel.key, keys}, {kernel.row, rows}, {kernel.step, 1}});
    heed::deal_out(kernel.weights, of_weights(kernel.weights, kernel.key, kernel.row));
    if (codes) {
        computed(kernel.scales, at_step, MemoryType::Stack, {{kernel.key, keys}, {kernel.step, 1}})
            .gpu_threads(kernel.key);
    }
    heed::schedule_sum(kernel.sum, at_step, {columns, rows}, deal, {kernel.over_keys.x}, {});
    const Var in_chunk("in_chunk"), chunk("chunk");
    computed(kernel.values, at_step, MemoryType::Stack, {{kernel.d, columns}, {kernel.key, keys}, {kernel.step, 1}})
        .align_storage(kernel.d, row_elements)
        .split(kernel.d, chunk, in_chunk, chunk_elements);
    heed::deal_copies(kernel.values, in_chunk, chunk, kernel.key, columns / chunk_elements, keys, 32);
    return instructions(heed::compile_cuda(device_spec("steps"), kernel, 32, [&](heed::Passes &passes) {
        passes.add_exactly<heed::RepeatLoops>(1, "repetitions", kernel.state.name(), kernel.doubts.name(),
                                              std::set<std::string>());
        passes.add_exactly<heed::SumInRegisters>(1, "sums", kernel.sum.name(), kernel.state.name());
        passes.add_exactly<heed::PipelineCopies>(2, "loops", false, false, turn);
        passes.add_exactly<heed::LowerTileProducts>(2, "products", 32);
        passes.add<heed::PrivateRegisters>(32);
        passes.add<heed::DropBarriers>();
        const int buffers = turn.empty() ? 2 : 1;
        passes.add<heed::LowerSharedMemory>(buffers * keys * (kernel.bytes * row_elements + (codes ? 4 : 0)));
        passes.add<heed::ReadThreadsAnew>(std::set<std::string>{kernel.doubts.name()});
    }));
}

// Two tiles of rows, two of columns, two of keys; in the repetition a second product, for each block of columns where a
// warp finds infinities, and the test of the factors in both.
TEST(Steps, AreRepeatedWhereTheResultIsInDoubt) {
    const auto found = steps_of_products();
    EXPECT_EQ(found.at("heed_barrier_any"), 1);
    EXPECT_EQ(found.at("heed_mma_f16"), 8 + 8 + 8);
    EXPECT_EQ(found.at("heed_ones_unless_negative_f16"), 8);
    EXPECT_EQ(found.at("heed_any_lane"), 1 + 1 + 2);
    EXPECT_EQ(found.at("heed_add_infinity"), found.at("heed_subtract_infinity"));
}

// Votes are left where infinities are looked for.
TEST(Steps, WithoutAFactorScaleNothing) {
    const auto found = steps_of_products({32, false, false});
    EXPECT_EQ(found.at("heed_mma_f16"), 8 + 8 + 8);
    EXPECT_EQ(found.at("heed_any_lane"), 2);
}

TEST(Steps, OfHalfAsManyRowsHaveHalfAsManyProducts) {
    EXPECT_EQ(steps_of_products({16}).at("heed_mma_f16"), 4 + 4 + 4);
}

// Four tiles of columns, two of keys; a scale is copied before each loop and in it.
TEST(Steps, OfCodesMakeNumbersOfThem) {
    const auto found = steps_of_products({16, true});
    EXPECT_EQ(found.at("heed_mma_f16"), 8 + 8);
    EXPECT_EQ(found.at("heed_alternate_codes"), 4 + 4);
    EXPECT_EQ(found.at("heed_copy_word_async"), 2 * 2);
    EXPECT_EQ(found.at("heed_load_u8_if"), 2 * 2 * 2);
    EXPECT_EQ(found.count("heed_ones_unless_negative_f16"), 0U);
}

// Each product is in the branch of its 16 columns or keys.
TEST(Steps, SumTheTermsThatAreAskedFor) {
    for (const bool by_key : {false, true}) {
        StepOptions options;
        const auto in_parts_of = [=](int elements) {
            return [=](const Expr &column, const Expr &key, const Expr &count) {
                return (by_key ? key : column) / elements < count;
            };
        };
        options.summed = in_parts_of(16);
        EXPECT_EQ(steps_of_products(options).at("heed_mma_f16"), 8 + 8 + 8);
        options.summed = in_parts_of(8);
        EXPECT_THROW(steps_of_products(options), heed::BadInput);
    }
}

// Values are read after the weights: each step copies its own, where both buffers would be copied to before it.
TEST(Steps, CopyInTurnsWhereThereIsOneBuffer) {
    StepOptions options;
    options.turn = "weights";
    const auto found = steps_of_products(options);
    EXPECT_EQ(found.at("heed_copy_async"), 2 * 2);
    EXPECT_EQ(found.at("heed_wait_copies"), 2 * 2);
    options.turn = "no stage";
    EXPECT_THROW(steps_of_products(options), heed::BadInput);
}

// A thread copies two chunks before each loop and in it; the second one's address is that of the first and a sum.
TEST(Steps, CopyByElementsWhatIsNotAligned) {
    const auto found = steps_of_products();
    EXPECT_EQ(found.at("heed_copy_async"), 2 * 2 * 2);
    EXPECT_EQ(found.at("heed_load_u16_if"), 2 * 2 * 2);
    EXPECT_GE(found.at("heed_advance"), 2 * 2);
}

// Each lane reads what another one has stored in its registers.
std::map<std::string, int> exchange(const std::function<Expr(const Expr &lane)> &other) {
    DeviceKernel kernel;
    const Var i("i"), block("block");
    const RDom all(0, 64, 0, kernel.count, "all");
    Func own("own"), both("both");
    own(i, block) = heed::load_at(Float(32), kernel.from, block * 64 + i);
    both(i, block) = own(i, block) + own(clamp(other(i), 0, 63), block);
    kernel.add(heed::store_at(kernel.to, all.y * 64 + all.x, both(all.x, all.y)));
    kernel.named.update().gpu_blocks(all.y).gpu_threads(all.x).never_partition_all();
    for (Func f : {own, both}) {
        computed(f, {kernel.named, all.y}, MemoryType::Register, {{i, 64}, {block, 1}}).gpu_threads(i);
    }
    return instructions(heed::compile_cuda(device_spec("exchange"), kernel, 64, [&](heed::Passes &passes) {
        passes.add<heed::PrivateRegisters>();
        passes.add<heed::DropBarriers>();
        passes.add<heed::LowerSharedMemory>(0);
    }));
}

TEST(PrivateRegisters, AreReadByLanesThatDifferInABit) {
    EXPECT_EQ(exchange([](const Expr &lane) { return lane + 2 - lane / 2 % 2 * 4; }).at("heed_from_lane_2"), 1);
    EXPECT_EQ(exchange([](const Expr &lane) { return lane + 16 - lane / 16 % 2 * 32; }).at("heed_from_lane_16"), 1);
}

TEST(PrivateRegisters, RefuseThoseOfOtherLanes) {
    EXPECT_THROW(exchange([](const Expr &lane) { return 63 - lane; }), heed::BadInput);
    EXPECT_THROW(exchange([](const Expr &lane) { return lane / 2; }), heed::BadInput);
}

// Of two elements of a thread; `second`: the condition of the second one.
std::map<std::string, int> forms(const Expr &of_second) {
    DeviceKernel kernel;
    const Var i("i"), u("u"), block("block");
    const RDom all(0, 2, 0, 32, 0, kernel.count, "all");
    Func made("made");
    const Expr element = heed::load_at(Float(32), kernel.from, (block * 32 + i) * 2 + u);
    const Expr condition = heed::same_for_block(select(u == 0, kernel.count, of_second) > 3);
    made(u, i, block) = select(condition, element, heed::exp2_on_device(element));
    kernel.add(heed::store_at(kernel.to, (all.z * 32 + all.y) * 2 + all.x, made(all.x, all.y, all.z)));
    kernel.named.update().gpu_blocks(all.z).gpu_threads(all.y).unroll(all.x).never_partition_all();
    computed(made, {kernel.named, all.z}, MemoryType::Register, {{u, 2}, {i, 32}, {block, 1}}).unroll(u).gpu_threads(i);
    return instructions(heed::compile_cuda(device_spec("forms"), kernel, 32, [&](heed::Passes &passes) {
        passes.add_exactly<heed::BranchBlocks>(1, "stages");
        passes.add<heed::PrivateRegisters>();
        passes.add<heed::DropBarriers>();
        passes.add<heed::LowerSharedMemory>(0);
    }));
}

TEST(BranchBlocks, StagesHaveTwoForms) {
    const Param<int32_t> count("count");
    EXPECT_EQ(forms(count).at("heed_exp2"), 2);
}

TEST(BranchBlocks, RefuseTwoConditions) {
    const Param<int32_t> count("count");
    EXPECT_THROW(forms(count * 2), heed::BadInput);
}

TEST(LinearTerms, AreProductsOfWhatAnIndexIsMadeOf) {
    const Var step("step"), thread("thread");
    const Param<uint64_t> stride("stride");
    const auto at = [&](const Expr &row) { return cast<uint64_t>(row) * stride; };
    const heed::LinearTerms some(at(thread + 16) + at(step * 64)), others(at(thread));
    const Expr apart = (some.that_use("step", false) - others).sum(), moved = some.that_use("step", true).sum();
    EXPECT_TRUE(Internal::is_const_zero(Internal::simplify(apart - Expr(stride) * 16))) << apart;
    EXPECT_TRUE(Internal::expr_uses_var(moved, "step") && !Internal::expr_uses_var(moved, "thread")) << moved;
    EXPECT_EQ(heed::LinearTerms(thread * 3 + 5 - thread).constant(), 5);
}

}  // namespace
