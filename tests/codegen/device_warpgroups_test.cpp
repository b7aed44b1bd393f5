// What the passes for products of warpgroups make of a small kernel of one, and what they refuse.
#include <gtest/gtest.h>

#include "generators/common/bad_input.h"
#include "generators/cuda/warpgroup.h"
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/pipeline_copies.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/repeat_loops.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/cuda/sum_in_registers.h"
#include "generators/lowering/cuda/warpgroup_products.h"
#include "schedules/cuda/tile_product.h"
#include "tests/codegen/device_kernel.h"

namespace {

using namespace Halide;

constexpr int query_rows = 64, step_keys = 16, value_columns = 16, group_of_threads = 128, panel_row = 64;

// state = state + weights x values, of steps of 16 keys, whose weights are made of scores x . keys of 16 elements.
struct WarpgroupKernel : DeviceKernel {
    Var d{"d"}, row{"row"}, key{"key"}, step{"across"}, block{"which"}, lane{"of_warp"};
    RDom steps{0, count, "steps"}, over_keys{0, step_keys, "over_keys"},
        all{0, value_columns, 0, query_rows, 0, count, "all"};
    heed::TileProduct product{{query_rows, step_keys, 8, 2, false}, 16, 1};
    Func weights{"weights"}, values{"values"}, sum{"sum_of_values"}, state{"state"}, doubts{"doubts"};

    WarpgroupKernel() {
        const auto line = [&](const Expr &number) { return from + cast<uint64_t>(number) * cast<uint64_t>(32); };
        heed::TileRows of_x = {heed::ElementType::f16, {block}, line(product.row)},
                       of_keys = {heed::ElementType::f16, {step, block}, line(step * step_keys + product.column)};
        product.define_product(of_x, of_keys, {step, block});
        const Expr left_out = heed::in_repetition(step) && key > row, score = product.sum(key, row, step, block);
        weights(key, row, step, block) =
            reinterpret<float>(select(left_out, Expr(0x80000000u), reinterpret<uint32_t>(score + 1.f)));
        values(d, key, step, block) = heed::load_at(UInt(16), line(step * step_keys + key), d);
        sum(d, row, step, block) = 0.f;
        const Expr so_far = sum(d, row, step, block), w = weights(over_keys, row, step, block);
        const Expr value = heed::to_float(heed::ElementType::f16, values(d, over_keys, step, block));
        const Expr is_out = heed::in_repetition(step) && reinterpret<uint32_t>(w) == Expr(0x80000000u);
        sum(d, row, step, block) =
            select(is_out, so_far, so_far + heed::rounded_on_device(heed::ElementType::f16, w) * value);
        state(d, row, block) = 0.f;
        state(d, row, block) += sum(d, row, steps, block);
        doubts(lane, block) = cast<int32_t>(state(lane % 4 * 2, lane / 4 % 8 + lane / 32 * 16, block) > 1.f);
        const Expr doubt = doubts(all.y / 16 * 32 + all.y % 8 * 4 + all.x % 8 / 2, all.z);
        add(heed::store_at(to, (all.z * query_rows + all.y) * value_columns + all.x,
                           state(all.x, all.y, all.z) + cast<float>(doubt)));
    }
};

struct PanelOptions {
    heed::Deal deal = heed::in_low_fragments;  // a warp has 16 rows
    heed::Rows in_shared = heed::Rows::in_panels;
    bool delays = true;
};

std::map<std::string, int> products_of_warpgroups(const PanelOptions &options = {}, std::string *text = nullptr) {
    WarpgroupKernel kernel;
    const auto in_tiles = [&](Stage stage, const VarOrRVar &column, const VarOrRVar &row,
                              const std::vector<VarOrRVar> &outer) {
        heed::deal_out(stage, options.deal(stage, column, row), {}, outer);
    };
    const LoopLevel at_step(kernel.state, kernel.steps.x), at_block(kernel.named, kernel.all.z);
    in_tiles(kernel.named.update().gpu_blocks(kernel.all.z), kernel.all.x, kernel.all.y, {kernel.all.z});
    computed(kernel.state, at_block, MemoryType::Register,
             {{kernel.d, value_columns}, {kernel.row, query_rows}, {kernel.block, 1}});
    in_tiles(kernel.state, kernel.d, kernel.row, {});
    in_tiles(kernel.state.update(), kernel.d, kernel.row, {kernel.steps.x});
    computed(kernel.doubts, at_block, MemoryType::Register, {{kernel.lane, group_of_threads}, {kernel.block, 1}})
        .gpu_threads(kernel.lane);
    heed::TileProduct &product = kernel.product;
    heed::schedule_sum(product, at_step, {step_keys, query_rows}, options.deal);
    heed::schedule_copies(product, product.x_tile, query_rows, group_of_threads, options.in_shared);
    product.x_tile.compute_at(at_block).store_in(MemoryType::Stack);
    heed::schedule_copies(product, product.w_tile, step_keys, group_of_threads, options.in_shared);
    product.w_tile.compute_at(at_step).store_in(MemoryType::Stack);
    computed(kernel.weights, at_step, MemoryType::Register,
             {{kernel.key, step_keys}, {kernel.row, query_rows}, {kernel.step, 1}, {kernel.block, 1}});
    in_tiles(kernel.weights, kernel.key, kernel.row, {});
    heed::schedule_sum(kernel.sum, at_step, {value_columns, query_rows}, options.deal, {kernel.over_keys.x}, {});
    const Var in_chunk("in_chunk"), chunk("chunk");
    computed(kernel.values, at_step, MemoryType::Stack,
             {{kernel.d, value_columns}, {kernel.key, step_keys}, {kernel.step, 1}, {kernel.block, 1}})
        .align_storage(kernel.d, panel_row)
        .split(kernel.d, chunk, in_chunk, 8);
    heed::deal_copies(kernel.values, in_chunk, chunk, kernel.key, value_columns / 8, step_keys, group_of_threads);
    const Module module =
        heed::compile_cuda(device_spec("warpgroup"), kernel, group_of_threads, [&](heed::Passes &passes) {
            const std::string x = product.x_tile.name(), w = product.w_tile.name(), v = kernel.values.name();
            passes.add_exactly<heed::RepeatLoops>(1, "repetitions", kernel.state.name(), kernel.doubts.name(),
                                                  std::set<std::string>());
            passes.add_exactly<heed::SumInRegisters>(1, "sums", kernel.sum.name(), kernel.state.name());
            using Numbers = std::map<std::string, int>;
            passes.add_exactly<heed::StoreInPanels>(3, "arrays",
                                                    Numbers{{x, panel_row}, {w, panel_row}, {v, panel_row}});
            std::optional<heed::StageDelay> delay;
            if (options.delays) {
                delay = {kernel.sum.name(), product.sum.name(), heed::cuda::wait_products(0),
                         heed::cuda::copies_for_products()};
            }
            passes.add_exactly<heed::PipelineCopies>(2, "loops", false, false, "", delay);
            passes.add_exactly<heed::LowerWarpgroupProducts>(options.delays ? 6 : 4, "products",
                                                             Numbers{{x, query_rows}, {w, step_keys}, {v, step_keys}},
                                                             group_of_threads);
            passes.add<heed::PrivateRegisters>();
            passes.add_exactly<heed::NamedSums>(1, "arrays of sums", kernel.state.name());
            passes.add<heed::DropBarriers>();
            passes.add<heed::LowerSharedMemory>(2 * panel_row * (query_rows + 2 * 2 * step_keys), false,
                                                std::set<std::string>{x, w, v});
            passes.add<heed::ReadThreadsAnew>(std::set<std::string>{kernel.doubts.name()});
        });
    return instructions(module, text);
}

// Scores before the loop, in it and in the repetition; sums in it, behind it and in the repetition, where what is no
// number is counted. In the loop both are begun, and scores are waited for. A turn begins with a wait for the sums.
TEST(Warpgroups, MultiplyValuesBesideTheNextScores) {
    const auto found = products_of_warpgroups();
    EXPECT_EQ(found.at("heed_first_scores_f16_16"), 3);
    EXPECT_EQ(found.at("heed_more_sums_f16_16_0"), 3);
    EXPECT_EQ(found.at("heed_counts_f16_16_0"), 1);
    EXPECT_EQ(found.at("heed_wait_products_1"), 1);
    EXPECT_EQ(found.at("heed_wait_products_0"), 1 + 1 + 2 + 3);
    EXPECT_EQ(found.at("heed_commit_products"), 1 + 2 + 1 + 3);
    EXPECT_EQ(found.at("heed_set_weights_0"), 2 + 2);
    EXPECT_EQ(found.at("heed_copies_for_products"), 3 + 1 + 1);
}

// Nothing else orders what threads have copied before what products read.
TEST(Warpgroups, ReadCopiesAfterAFence) {
    std::string text;
    products_of_warpgroups({}, &text);
    const std::string wait = "cp.async.wait_group 0;", fence = "fence.proxy.async.shared::cta;", barrier = "bar.sync";
    int waits = 0;
    for (size_t at = text.find(wait); at != std::string::npos; at = text.find(wait, at + 1), waits++) {
        const size_t fenced = text.find(fence, at), arrived = text.find(barrier, at);
        ASSERT_NE(arrived, std::string::npos);
        EXPECT_LT(fenced, arrived);
    }
    EXPECT_EQ(waits, 4);
}

TEST(Warpgroups, MultiplyOneAfterTheOther) {
    PanelOptions options;
    options.delays = false;
    const auto found = products_of_warpgroups(options);
    EXPECT_EQ(found.at("heed_first_scores_f16_16"), 2);
    EXPECT_EQ(found.at("heed_more_sums_f16_16_0"), 2);
    EXPECT_EQ(found.count("heed_wait_products_1"), 0U);
    EXPECT_EQ(found.at("heed_wait_products_0"), 2 + 3);
}

// Scores have 8 registers, whose sums with 1 are weights; a thread has 8 sums.
TEST(Warpgroups, HaveTheirSumsInNamedRegisters) {
    const auto found = products_of_warpgroups();
    for (int i = 0; i < 8; i++) {
        EXPECT_GE(found.at("heed_score_" + std::to_string(i)), 3);
        EXPECT_GE(found.at("heed_set_sum_" + std::to_string(i)), 2);
        EXPECT_GE(found.at("heed_sum_" + std::to_string(i)), 1);
    }
    EXPECT_EQ(found.count("heed_sum_8"), 0U);
}

TEST(Warpgroups, RefuseOtherDealsAndRows) {
    PanelOptions options;
    options.deal = heed::in_fragments;  // 32 rows a warp
    EXPECT_THROW(products_of_warpgroups(options), heed::BadInput);
    options = {};
    options.in_shared = heed::Rows::padded;
    EXPECT_THROW(products_of_warpgroups(options), heed::BadInput);
}

}  // namespace
