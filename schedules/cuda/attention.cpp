// Attention on CUDA cores. Prefill: a block has 64 rows of queries of a head (32 where the output is wider than 128)
// and meets 64 keys at a time. A thread has 8 x 4 elements of a tile (4 x 4) and as many of each 64 columns of the
// output.
//
//   q_rows, row_range: where the rows are, what they see
//   for each 64 keys that some row sees
//     key_rows: where they are
//     for each 16 elements of the head dim
//       x_tile, w_tile: from tensors to shared memory
//       product += x_tile x w_tile, in registers
//     logits: in shared memory; what changes them is computed in the place of the dots, by rows
//     lane_max, row_max, factor; weights, in the place of logits; lane_sum, row_sum; what dropout leaves of weights
//     for each 16 keys
//       values: from tensors to shared memory
//       block_out += weights x values, in registers
//     state = state * factor + block_out, in registers
//
// Maxima and sums of rows stay in shared memory from step to step (LoadCarried).
//
// Instructions for each product of f32, of the whole loop over keys (sm_80): d64 1.57, d128 1.40, any (256) 1.43; the
// products alone 1.30 and, with the test for hidden keys, 1.44 to 1.27. d64 has 128 registers, d128 248, any 202: 4, 2
// and 2 blocks an SM, whose 39 KB of shared memory fit sm_75 as well. Elements are read one by one: 8 to 16 loads
// of 4 bytes are under way in each thread, and any alignment is the same.
//
// Decode: a block has 16 rows, of the heads of a group, and meets 128 keys at a time; a thread has 4 x 4 elements of a
// tile and as many of each 128 columns. x_tile is all of the rows, once for all steps, so that nothing but keys and
// values is read again: 1.00 to 1.01 times their bytes, by sectors that warps touch (int8 too, whose steps of the head
// dim are 32 elements for that). Counted for the memory, not measured: 128 threads with 16 loads of 4 bytes under way
// are 8 KB a block, 4 blocks of 128 registers (int8: 3 of 168) 32 KB of an SM, where 0.8 us of 21 bytes a cycle are 30.
// Shared memory, 39 KB and 48 KB, leaves as many on sm_80 and sm_90, 2 on sm_120, 1 on sm_75. Instructions for a
// product with keys and one with values (sm_80): f32 1.48 and 1.63, f16 1.61 and 1.69, codes 1.64 and 1.75.
#include "schedules/cuda/attention.h"

#include "generators/lowering/carried.h"
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/host_addresses.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/replace_in_place.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/skip_blocks.h"
#include "generators/lowering/trim_loops.h"
#include "schedules/cuda/attention_stages.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

namespace {

constexpr int score_padding = 4;  // elements of a row of scores: rows that are read at once are in different banks

// Steps of a product along the longest rows.
int steps_of_rows(const AttentionConfig &config, const ProductTile &tile) {
    const int longest = config.any_head_dim() ? max_cuda_head_dim : config.head_dim, of_step = tile.width * tile.chunks;
    return (longest + of_step - 1) / of_step;
}

class CoresSchedule : DeviceStages {
public:
    CoresSchedule(AttentionDevice &kernel, const AttentionForm &form)
        : DeviceStages(kernel, form.threads_of_row == 32  ? in_wide_blocks
                               : form.rows_of_thread == 8 ? in_tall_blocks
                                                          : in_square_blocks),
          form(form), threads(form.threads()) {}

    void apply() {
        outputs(threads);
        in_block(kernel.results).gpu_threads(kernel.row);
        places();
        in_step(kernel.key_rows).gpu_threads(kernel.key);
        products();
        softmax();
        values();
    }

private:
    const AttentionForm form;
    const int threads;

    // Tiles of keys and of values: in decode in one place, since neither is read where the other is stored.
    MemoryType of_products() const { return kernel.config.has_gqa ? MemoryType::GPUShared : MemoryType::Stack; }
    // Scores, rows fastest.
    Func &scores(Func &f) {
        std::vector<Var> by_row = f.args();
        std::swap(by_row[0], by_row[1]);
        return in_step(f).reorder_storage(by_row).align_storage(kernel.row, tile.products.rows + score_padding);
    }
    // A thread has every n-th column of a row.
    void by_rows(Func &f, Var &number) {
        const Var group("group"), thread("thread");
        scores(f)
            .split(kernel.column, number, group, threads / tile.products.rows)
            .fuse(kernel.row, group, thread)
            .reorder(number, thread)
            .gpu_threads(thread)
            .never_partition_all();
    }

    void products() {
        TileProduct &product = kernel.product;
        unroll(product.sum.update(), schedule_sum(product, step, deal));
        schedule_floats(product, product.x_tile, tile.products.rows, threads, form.rows_of_thread);
        schedule_floats(product, product.w_tile, tile.products.columns, threads);
        product.x_tile.store_in(MemoryType::Stack);
        product.w_tile.store_in(of_products());
        if (kernel.config.has_gqa) {
            // Read once: the few rows are next to nothing then, and they would be read for each step.
            product.x_tile.compute_at(block)
                .bound_extent(product.step, steps_of_rows(kernel.config, tile.products))
                .align_storage(product.row, tile.products.rows);
        }
        if (kernel.config.changes_logits()) {
            Var number("number");
            in_tiles(scores(kernel.dots), kernel.column, kernel.row);
            by_rows(kernel.logits, number);
            // What depends on the row alone is read once.
            for (Func *f : {&kernel.fields, &kernel.met, &kernel.row_range}) {
                Func own = f->in(kernel.logits);
                own.compute_at(kernel.logits, Var("thread")).store_in(MemoryType::Register);
                for (const Var &v : own.args()) own.bound_extent(v, 1);
            }
        } else {
            in_tiles(scores(kernel.logits), kernel.column, kernel.row);
        }
    }

    // Maxima or sums of lanes, in registers, and a copy in shared memory.
    void of_lanes(Func &lanes, const Func &rows) {
        const Var thread("thread");
        const RVar inner("inner"), outer("outer");
        in_step(lanes, MemoryType::Register).fuse(kernel.u, kernel.row, thread).gpu_threads(thread);
        lanes.update()
            .fuse(kernel.u, kernel.row, thread)
            .split(kernel.over_columns.x, outer, inner, 8)
            .reorder(inner, outer, thread)
            .unroll(inner)
            .gpu_threads(thread)
            .never_partition_all();
        Func copy = lanes.in(rows);
        in_step(copy).fuse(kernel.u, kernel.row, thread).gpu_threads(thread);
    }

    void softmax() {
        of_lanes(kernel.lane_max, kernel.row_max);
        of_lanes(kernel.lane_sum, kernel.row_sum);
        for (Func *f : {&kernel.old_max, &kernel.row_max, &kernel.row_sum}) in_step(*f).gpu_threads(kernel.row);
        if (kernel.config.has_gqa) {
            // Made of maxima where it is used: LLVM would put the barrier between two stages of half a warp into both
            // branches of the warp.
            kernel.factor.in(kernel.state)
                .compute_at(kernel.state, Var("thread"))
                .store_in(MemoryType::Register)
                .bound_extent(kernel.row, form.rows_of_thread)
                .unroll(kernel.row);
        } else {
            in_step(kernel.factor).gpu_threads(kernel.row);
        }
        Var number("number");
        by_rows(kernel.weights, number);
        kernel.weights.unroll(number, 8);
        if (!kernel.changes_weights()) return;
        by_rows(kernel.value_weights, number);
        if (kernel.kept.defined()) {
            kernel.kept.compute_at(kernel.value_weights, number).store_in(MemoryType::Register);
            for (const Var &v : kernel.kept.args()) kernel.kept.bound_extent(v, 1);
        }
    }

    void values() {
        Func &weights = kernel.changes_weights() ? kernel.value_weights : kernel.weights;
        const LoopLevel at_key(kernel.block_out, kernel.over_keys.x);
        in_step(kernel.block_out, MemoryType::Register);
        in_tiles(kernel.block_out, kernel.d, kernel.row);
        in_tiles(kernel.block_out.update(), kernel.d, kernel.row, {kernel.over_keys.x}, {kernel.over_keys.y});
        const Var round("round"), thread("thread");
        bounded(kernel.values.compute_at(kernel.block_out, kernel.over_keys.y).store_in(of_products()))
            .fuse(kernel.d, kernel.in_chunk, thread)
            .split(thread, round, thread, threads)
            .reorder(round, thread)
            .unroll(round)
            .gpu_threads(thread)
            .never_partition_all();
        kernel.values.in(kernel.block_out)
            .compute_at(kernel.block_out, Var("block"))
            .store_in(MemoryType::Register)
            .bound_extent(kernel.d, 4)
            .vectorize(kernel.d);
        weights.in(kernel.block_out)
            .compute_at(at_key)
            .store_in(MemoryType::Register)
            .bound_extent(kernel.row, form.rows_of_thread)
            .vectorize(kernel.row, 4)
            .unroll(kernel.row);
    }
};

}  // namespace

AttentionForm attention_form_cuda(const AttentionConfig &config) {
    const int widest = config.any_head_dim() ? max_cuda_head_dim : config.head_dim_v;
    const int columns = (widest + 63) / 64 * 64;
    if (config.has_gqa) {
        const int wide = (columns + 127) / 128 * 128;
        const bool codes = config.has_kv_scales();
        return {{{16, 128, 1, codes ? 32 : 16, true}, 8, wide, 8}, 4, 32, codes ? 3 : 4};
    }
    if (columns > 128) return {{{32, 64, 1, 16, true}, 16, columns, 4}, 4, 16, 1};
    return {{{64, 64, 1, 16, true}, 16, columns, 2}, 8, 16, 1};
}

Module attention_cores_cuda(const std::string &name, const AttentionConfig &config, const Target &target) {
    const AttentionForm form = attention_form_cuda(config);
    AttentionDevice kernel(config, form.tile);
    CoresSchedule(kernel, form).apply();
    OpSpec spec;
    spec.name = name;
    // Tensors that pass 2^31 elements are read by addresses: what Halide would refuse of a buffer does not matter.
    spec.target = target.with_feature(Target::NoAsserts);
    return compile_cuda(spec, kernel, form.threads(), [&](Passes &passes) {
        passes.add<HostAddresses>(kernel.named.name());
        passes.add_exactly<TrimLoops>(1, "loops over keys", "steps$x");
        if (config.score_mod.block_visible) passes.add<SkipBlocks>(std::vector<std::string>{"steps$x"});
        passes.add<LoadCarried>(kernel.row_max.name());
        passes.add<LoadCarried>(kernel.row_sum.name());
        const std::string logits = (kernel.config.changes_logits() ? kernel.dots : kernel.logits).name();
        if (kernel.config.changes_logits())
            passes.add_exactly<ReplaceInPlace>(1, "logits", kernel.logits.name(), logits);
        passes.add_exactly<ReplaceInPlace>(1, "weights", kernel.weights.name(), logits);
        if (kernel.changes_weights()) {
            passes.add_exactly<ReplaceInPlace>(1, "weights of values", kernel.value_weights.name(), logits);
        }
        passes.add<PrivateRegisters>();
        passes.add<DropBarriers>();
        passes.add<LowerSharedMemory>(attention_cores_shared_bytes(config));
    });
}

int attention_cores_shared_bytes(const AttentionConfig &config) {
    const AttentionForm form = attention_form_cuda(config);
    const ProductTile &tile = form.tile.products;
    const int scores = 4 * tile.columns * (tile.rows + score_padding), values = 4 * form.tile.chunk * form.tile.columns;
    const int numbers = 16 * (sequence_padding + 2), of_rows = (16 + 4 * 6 + 2 * 4 * form.tile.lanes) * tile.rows;
    const int of_keys = (config.has_kv_scales() ? 24 : 16) * tile.columns;
    const int rest = numbers + of_rows + of_keys + scores, keys = shared_bytes_of(tile, tile.columns);
    if (!config.has_gqa) return rest + shared_bytes_of(tile, tile.rows) + keys + values;
    return rest + steps_of_rows(config, tile) * 4 * tile.width * tile.chunks * tile.rows + std::max(keys, values);
}

}  // namespace heed
