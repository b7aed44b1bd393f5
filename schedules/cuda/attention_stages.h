#pragma once
// Where the stages of an attention kernel are computed: in a step over keys, or once in a block.

#include "generators/ops/attention_device.h"
#include "schedules/cuda/operation.h"
#include "schedules/cuda/tile_product.h"

namespace heed {

class DeviceStages {
protected:
    using Func = Halide::Func;
    using Var = Halide::Var;
    using MemoryType = Halide::MemoryType;

    AttentionDevice &kernel;
    const AttentionDevice::Tile &tile;
    const Deal deal, deal_output;  // of logits; of columns of the output
    const Halide::LoopLevel step, block;

    DeviceStages(AttentionDevice &kernel, Deal deal, Deal deal_output)
        : kernel(kernel), tile(kernel.tile), deal(deal), deal_output(deal_output), step(kernel.state, kernel.steps.x),
          block(kernel.named, kernel.all.z) {}
    DeviceStages(AttentionDevice &kernel, Deal deal) : DeviceStages(kernel, deal, deal) {}

    // A stage of a block or of a step, over some of its coordinates.
    Func &bounded(Func &f) {
        for (const Var &v : f.args()) {
            const std::string &name = v.name();
            if (name == kernel.row.name()) f.bound_extent(v, tile.products.rows);
            if (name == kernel.column.name()) f.bound_extent(v, tile.keys_of_row());
            if (name == kernel.of_block.name()) f.bound_extent(v, tile.queries());
            if (name == kernel.key.name()) f.bound_extent(v, tile.products.columns);
            if (name == kernel.searcher.name()) f.bound_extent(v, kernel.searchers);
            if (name == kernel.u.name()) f.bound_extent(v, tile.lanes);
            if (name == kernel.d.name()) f.bound_extent(v, tile.columns);
            if (name == kernel.in_chunk.name()) f.bound_extent(v, tile.chunk);
            for (const Var &one : {kernel.across, kernel.down, kernel.sequence, kernel.chunk}) {
                if (name == one.name()) f.bound_extent(v, 1);
            }
        }
        return f;
    }
    Func &in_step(Func &f, MemoryType where = MemoryType::Stack) { return bounded(f.compute_at(step).store_in(where)); }
    Func &in_block(Func &f, MemoryType where = MemoryType::Stack) {
        return bounded(f.compute_at(block).store_in(where));
    }
    void places() {
        in_block(kernel.fields);
        if (kernel.block_values.defined()) in_block(kernel.block_values);
        if (kernel.skips_first_steps()) {
            in_block(kernel.first_seen).gpu_threads(kernel.searcher);
            kernel.first_seen.update().gpu_threads(kernel.searcher).never_partition_all();
        }
        in_block(kernel.met);
        if (kernel.paged_head.defined()) in_block(kernel.paged_head);
        in_block(kernel.q_rows).gpu_threads(kernel.row);
        in_block(kernel.row_range).gpu_threads(kernel.row);
        if (kernel.query_values.defined()) in_block(kernel.query_values).gpu_threads(kernel.of_block);
        if (kernel.first_elements.defined()) in_block(kernel.first_elements).gpu_threads(kernel.of_block);
    }
    // What is stored, and the state of which it is made.
    void outputs(int threads) {
        Halide::Stage stored = kernel.named.update();
        if (tile.parts > 1) {
            // A thread has every n-th column of a row.
            const Halide::RVar number("number"), column("column"), thread("thread");
            stored.split(kernel.all.x, number, column, threads / tile.queries())
                .fuse(column, kernel.all.y, thread)
                .reorder(number, thread, kernel.all.z)
                .unroll(number)
                .gpu_threads(thread)
                .never_partition_all();
            kernel.out_rows.compute_at(Halide::LoopLevel(kernel.named, thread))
                .store_in(MemoryType::Register)
                .bound_extent(kernel.of_block, 1)
                .bound_extent(kernel.down, 1);
        } else {
            output_in_tiles(stored, kernel.all.x, kernel.all.y, {kernel.all.z});
        }
        stored.gpu_blocks(kernel.all.z);
        if (kernel.parts > 1) schedule_faults(kernel.named.update(1), kernel.faults, threads);
        in_block(kernel.state, MemoryType::Register);
        output_in_tiles(kernel.state, kernel.d, kernel.row);
        output_in_tiles(kernel.state.update(), kernel.d, kernel.row, {kernel.steps.x});
    }
    // As tiles of sums are dealt out.
    void in_tiles(Halide::Stage stage, const Halide::VarOrRVar &column, const Halide::VarOrRVar &row,
                  const std::vector<Halide::VarOrRVar> &inner = {}, const std::vector<Halide::VarOrRVar> &outer = {}) {
        deal_out(stage, deal(stage, column, row), inner, outer);
    }
    void output_in_tiles(Halide::Stage stage, const Halide::VarOrRVar &column, const Halide::VarOrRVar &row,
                         const std::vector<Halide::VarOrRVar> &outer = {}) {
        deal_out(stage, deal_output(stage, column, row), {}, outer);
    }
};

}  // namespace heed
