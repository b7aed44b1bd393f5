// Attention on tensor cores. A block has 128 rows of queries of a head, a warp 32 of them and all columns of their
// logits and of their output, a thread what mma.m16n8k16 gives it: of each eight columns two, of each eight rows one.
// Where something changes logits or drops weights half as many rows, and at most 32 keys. In decode 16 rows (32 in the
// kernels `wide`), for each of which a warp has a quarter of a step's keys (half of them): parts, whose states are one
// at the end.
//
//   q_rows, row_range: where the rows are, what they see; x_tile: the rows, from which a thread takes its elements
//     (x_own, in decode: x_tile is one for all parts, where the second step's keys will be, PlaceOver)
//   for each 64 keys that some row sees
//     w_tile, values: the next step's, from tensors to shared memory (PipelineCopies)
//     sum = x_tile x w_tile; stages: what changes logits, each where the call has it (BranchBlocks)
//     logits: what hides keys, where some row does not see all of them (BranchBlocks)
//     row_max, base, factor, weights, row_sum, in registers: maxima are exchanged in the four lanes of a row
//     counted, gathered, kept: dropout, as bits; value_weights: what it leaves (BranchBlocks)
//     state = state * factor + weights x values (SumInRegisters)
//   the same once more where the result is in doubt (RepeatLoops): values of hidden keys may be no numbers
//   part_numbers, part_states: what parts hand over in shared memory, where the keys were (PlaceOver)
// In heads of more than 192 elements, and kernels of any, a warp has 16 rows, and keys and values take turns in shared
// memory (PipelineCopies); in decode of more than 128, where queries stay in shared memory. Products of run-time head
// dims end with the last 64 elements that a row has.
// On sm_90 four warps of 16 rows multiply together (attention_warpgroups.cpp): 64 or 128 rows a block; values of a step
// are multiplied beside the next step's scores.
// Of int8 keys weights are in units of the row's largest one times its value's scale, and scales are copied ahead too.
//
// A step of f16, d64 (sm_80): 611 instructions for 128 products, without what is seldom done; 252 registers, no spills.
#include "schedules/cuda/attention_tensor.h"

#include <algorithm>
#include <set>

#include "generators/lowering/carried.h"
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/block_branches.h"
#include "generators/lowering/cuda/host_addresses.h"
#include "generators/lowering/cuda/pipeline_copies.h"
#include "generators/lowering/cuda/place_over.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/repeat_loops.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/cuda/sum_in_registers.h"
#include "generators/lowering/cuda/tile_products.h"
#include "generators/lowering/skip_blocks.h"
#include "generators/lowering/trim_loops.h"
#include "schedules/cuda/attention_stages.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

namespace {

// Floats after a row of a part's state: rows that are stored at once are in different banks. Where keys and values take
// turns half of the columns has the place of one buffer.
int state_padding(const AttentionDevice &kernel) { return takes_turns(kernel.config, kernel.tile) ? 4 : 8; }

Deal deal_of(const AttentionDevice::Tile &tile) { return has_low_warps(tile) ? in_low_fragments : in_fragments; }
Deal deal_of_output(const AttentionDevice &kernel) {
    if (!kernel.config.has_kv_scales()) return deal_of(kernel.tile);
    return has_low_warps(kernel.tile) ? in_low_fragments_of_codes : in_fragments_of_codes;
}

class TensorSchedule : DeviceStages {
public:
    explicit TensorSchedule(AttentionDevice &kernel)
        : DeviceStages(kernel, deal_of(kernel.tile), deal_of_output(kernel)),
          threads(attention_tensor_threads(kernel.tile)) {}

    // The elements of queries that are held in registers.
    std::set<std::string> held;

    void apply() {
        results();
        places();
        if (kernel.config.paged) in_step(kernel.key_rows).gpu_threads(kernel.key);
        products();
        softmax();
        values();
    }

private:
    const int threads;
    const bool has_codes = kernel.config.has_kv_scales();
    const Rows rows = tile.in_warpgroups ? Rows::in_panels : Rows::padded;
    const int chunk = chunk_of(kernel.config.kv_dtype);  // elements of 16 bytes

    int eights() const { return has_low_warps(tile) ? 2 : 4; }

    // Numbers of rows, each in the four lanes that have columns of it.
    void in_rows(Stage stage, const std::vector<VarOrRVar> &inner = {}) {
        deal_out(stage, rows_in_fragments(stage, kernel.row, kernel.u, eights()), inner);
    }
    void numbers(Func &f) {
        in_step(f, MemoryType::Register);
        in_rows(f);
    }

    void results() {
        outputs(threads);
        if (tile.parts > 1) {
            in_block(kernel.part_numbers);
            in_rows(kernel.part_numbers);
            const int columns = tile.columns_handed_over;
            for (Func &f : kernel.part_states) {
                in_block(f)
                    .bound_extent(kernel.handed_over, columns)
                    .align_storage(kernel.handed_over, columns + state_padding(kernel));
                output_in_tiles(f, kernel.handed_over, kernel.row);
            }
            in_block(kernel.results).gpu_threads(kernel.row);
        } else {
            for (Func *f : {&kernel.results, &kernel.out_rows}) {
                in_block(*f, MemoryType::Register);
                in_rows(*f);
            }
        }
        std::vector<Func> of_lanes = {kernel.pair_sum, kernel.last_sum, kernel.doubts};
        if (has_codes) of_lanes.push_back(kernel.last_unit);
        for (Func &f : of_lanes) {
            in_block(f, MemoryType::Register);
            in_rows(f);
        }
        if (!has_codes) in_rows(kernel.doubts.update(), {kernel.over_pairs.x, kernel.over_pairs.y});
    }

    void products() {
        TileProduct &product = kernel.product;
        schedule_sum(product, step, {tile.keys_of_row(), tile.products.rows}, deal);
        schedule_copies(product, product.x_tile, tile.queries(), threads, rows);
        product.x_tile.compute_at(block).store_in(MemoryType::Stack);
        if (tile.holds_queries) {
            schedule_own(product, product.x_own, block, tile.products.rows, eights());
            if (tile.parts == 1) held = {product.x_own.name()};
        } else if (has_codes) {
            schedule_own(product, product.x_own, block, tile.queries(), eights());
            schedule_ordered(product, block, tile.queries(), eights());
        }
        schedule_copies(product, product.w_tile, tile.products.columns, threads, rows);
        product.w_tile.compute_at(step).store_in(MemoryType::Stack);
        std::vector<Func> of_logits = kernel.stages;
        of_logits.push_back(kernel.logits);
        for (Func &f : of_logits) {
            in_step(f, MemoryType::Register);
            kernel.asks_user() && f.name() == kernel.of_user.name() ? by_columns(f)
                                                                    : in_tiles(f, kernel.column, kernel.row);
        }
    }
    // What is read of a key is read once for all rows of a thread.
    void by_columns(Func &f) {
        Dealt dealt = deal(f, kernel.column, kernel.row);
        std::rotate(dealt.own.begin(), dealt.own.end() - 1, dealt.own.end());
        deal_out(f, dealt);
    }

    void softmax() {
        for (Func *f : {&kernel.old_max, &kernel.pair_max, &kernel.row_max, &kernel.base, &kernel.factor,
                        &kernel.row_sum, &kernel.lane_max, &kernel.lane_sum}) {
            numbers(*f);
        }
        for (Func *f : {&kernel.lane_max, &kernel.lane_sum}) {
            in_rows(f->update(), {kernel.over_columns.x, kernel.over_columns.y});
        }
        for (Func *f : {&kernel.row_max, &kernel.row_sum}) f->hoist_storage(block);
        in_step(kernel.weights, MemoryType::Register);
        in_tiles(kernel.weights, kernel.column, kernel.row);
        if (has_codes) units();
        if (kernel.config.has_dropout) dropout();
    }

    void dropout() {
        for (Func *f : {&kernel.counted, &kernel.gathered, &kernel.kept}) numbers(*f);
        in_rows(kernel.counted.update(), {kernel.over_counters});
        if (!has_codes) {
            in_step(kernel.value_weights, MemoryType::Register);
            in_tiles(kernel.value_weights, kernel.column, kernel.row);
        }
        // A loop, since it has much code that is seldom needed.
        Stage of_each = kernel.kept.update();
        const Dealt dealt = rows_in_fragments(of_each, kernel.row, kernel.u, eights());
        order(of_each, {dealt.own[0], kernel.over_uncounted.x, kernel.over_uncounted.y}, {dealt.thread});
        unroll(of_each.gpu_threads(dealt.thread), {dealt.own[0]});
    }

    void units() {
        const Var round("round"), thread("thread");
        in_step(kernel.scales)
            .bound_extent(kernel.scales.args()[1], 2)
            .fuse(kernel.key, kernel.scales.args()[1], thread)
            .split(thread, round, thread, std::min(threads, 2 * tile.products.columns))
            .reorder(round, thread)
            .unroll(round)
            .gpu_threads(thread)
            .never_partition_all();
        for (Func *f : {&kernel.old_unit, &kernel.lane_unit, &kernel.pair_unit, &kernel.row_unit, &kernel.of_unit,
                        &kernel.unit_factor}) {
            numbers(*f);
        }
        in_rows(kernel.lane_unit.update(), {kernel.over_columns.x, kernel.over_columns.y});
        kernel.row_unit.hoist_storage(block);
        for (Func *f : {&kernel.scaled_weights, &kernel.value_weights}) {
            in_step(*f, MemoryType::Register);
            in_tiles(*f, kernel.column, kernel.row);
        }
    }

    void values() {
        schedule_sum(kernel.block_out, step, {tile.columns, tile.products.rows}, deal_output, {kernel.over_keys.x},
                     {kernel.over_keys.y});
        const Var of_chunk("of_chunk"), chunk_of_row("chunk_of_row");
        in_step(kernel.values)
            .align_storage(kernel.d, tile.in_warpgroups ? row_in_panels(tile.columns) : tile.columns + chunk)
            .split(kernel.d, chunk_of_row, of_chunk, chunk);
        deal_copies(kernel.values, of_chunk, chunk_of_row, kernel.in_chunk, tile.columns / chunk, tile.chunk, threads);
    }
};

// What parts hand over, and what is used up then.
std::vector<std::pair<std::string, std::string>> places_of_parts(const AttentionDevice &kernel) {
    const std::string keys = kernel.product.w_tile.name(), values = kernel.values.name();
    if (kernel.part_states.empty()) return {};
    const std::string first = kernel.part_states[0].name(), numbers = kernel.part_numbers.name();
    if (kernel.part_states.size() == 2) return {{first, keys}, {kernel.part_states[1].name(), values}};
    if (!kernel.config.has_kv_scales()) return {{first, keys}};
    return {{first, keys}, {numbers + ".0", values}, {numbers + ".1", kernel.scales.name()}};
}

}  // namespace

Module attention_tensor_cuda(const std::string &name, const AttentionConfig &config, const Target &target) {
    AttentionDevice kernel(config, attention_tensor_tile(config));
    const int threads = attention_tensor_threads(kernel.tile);
    TensorSchedule schedule(kernel);
    schedule.apply();
    OpSpec spec;
    spec.name = name;
    // Tensors that pass 2^31 elements are read by addresses: what Halide would refuse of a buffer does not matter.
    spec.target = target.with_feature(Target::NoAsserts);
    return compile_cuda(spec, kernel, threads, [&](Passes &passes) {
        passes.add<HostAddresses>(kernel.named.name());
        passes.add_exactly<TrimLoops>(1, "loops over keys", "steps$x");
        if (config.score_mod.block_visible) passes.add<SkipBlocks>(std::vector<std::string>{"steps$x"});
        passes.add<LoadCarried>(kernel.row_max.name());
        passes.add<LoadCarried>(kernel.row_sum.name());
        if (config.has_kv_scales()) passes.add<LoadCarried>(kernel.row_unit.name());
        passes.add_exactly<RepeatLoops>(1, "repetitions", kernel.state.name(), kernel.doubts.name(), schedule.held);
        // A user's stage has one form; dropout has four stages.
        const int of_step = 1 + static_cast<int>(kernel.stages.size()) - kernel.asks_user() + 4 * config.has_dropout;
        // Halide passes over query_values where only the stage of the mask reads them, and over first_elements.
        const bool of_mask_alone = config.has_mask && !config.has_bias && !config.has_alibi && !kernel.asks_user();
        const int forms = 2 * of_step + of_mask_alone + (config.has_dropout && !config.has_kv_scales());
        passes.add_exactly<BranchBlocks>(forms, "stages of two forms");
        passes.add_exactly<SumInRegisters>(1, "sums in the state", kernel.block_out.name(), kernel.state.name());
        if (kernel.tile.in_warpgroups) {
            add_passes_of_warpgroups(passes, kernel);
        } else {
            passes.add_exactly<PipelineCopies>(2, "loops over keys that copy ahead", kernel.tile.parts > 1, true,
                                               takes_turns(config, kernel.tile) ? kernel.lane_max.name() : "");
            passes.add_exactly<LowerTileProducts>(4, "products", threads);
            passes.add<PrivateRegisters>();
        }
        if (kernel.tile.parts > 1 && kernel.tile.holds_queries) {
            passes.add_exactly<PlaceOver>(1, "queries", kernel.product.x_tile.name(), kernel.product.w_tile.name(),
                                          PlaceOver::When::before_copies);
        }
        if (kernel.product.x_ordered.defined()) {
            passes.add_exactly<PlaceOver>(1, "ordered queries", kernel.product.x_ordered.name(),
                                          kernel.product.x_tile.name());
        }
        for (const auto &[array, over] : places_of_parts(kernel)) passes.add_exactly<PlaceOver>(1, array, array, over);
        passes.add<DropBarriers>();
        std::set<std::string> panels;
        if (kernel.tile.in_warpgroups) {
            panels = {kernel.product.x_tile.name(), kernel.product.w_tile.name(), kernel.values.name()};
        }
        passes.add<LowerSharedMemory>(attention_tensor_shared_bytes(config), config.has_score_mod(), panels);
        std::set<std::string> read_after = {kernel.doubts.name()};
        if (kernel.tile.parts > 1) read_after.insert({kernel.part_numbers.name(), kernel.results.name()});
        // Places of columns would take registers over the loop that the weights of codes and their scales need.
        std::set<std::string> made_anew;
        if (config.has_gqa && config.has_kv_scales()) {
            for (const Func &f : kernel.stages) made_anew.insert(f.name());
        }
        if (kernel.asks_user()) made_anew.insert(kernel.of_user.name());
        if (config.has_dropout) made_anew.insert({kernel.counted.name(), kernel.kept.name()});
        passes.add<ReadThreadsAnew>(read_after, made_anew);
    });
}

}  // namespace heed
