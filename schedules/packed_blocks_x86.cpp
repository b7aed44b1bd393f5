#include "schedules/packed_blocks_x86.h"

#include <utility>

#include "schedules/transposed_tiles.h"

namespace heed {

using namespace Halide;

void PackedBlocksSchedule::first() {
    PackedBlocks &p = st.packed;
    const Var task("packed_task");
    auto by_task = [&](Func &f) -> Func & {
        return f.compute_root()
            .bound(p.block, 0, p.num_blocks)
            .bound(p.head, 0, p.num_heads)
            .fuse(p.head, p.block, task)
            .parallel(task);
    };
    if (cfg.packs_k()) by_task(p.k);
    if (p.over_d.defined()) p.k.update().fuse(p.head, p.block, task).parallel(task);
    by_task(p.v);
    by_task(p.nonfinite);
    blocks(p, {task});
    const auto of_one_block = [&](Func &f) { f.bound_extent(p.block, 1).bound_extent(p.head, 1); };
    of_one_block(p.exponents.compute_at(p.nonfinite, task));
    if (cfg.any_head_dim()) of_one_block(p.v_rows.rows.hoist_storage(p.v, task));
    const std::pair<Func, Func> slots[] = {{p.k_slots, p.k}, {p.v_slots, p.v}};
    for (auto [of_keys, consumer] : slots) {
        if (!of_keys.defined()) continue;
        of_keys.compute_at(consumer, task)
            .store_in(MemoryType::Register)
            .bound_extent(st.k, cfg.kv_block)
            .vectorize(st.k, cfg.lanes)
            .partition(st.k, Partition::Never)  // a loop to shorten
            .specialize(st.in_place);
    }
}

void PackedBlocksSchedule::in_step(BlockChain &ch) {
    PackedBlocks &p = ch.packed;
    if (cfg.packs_k()) of_block_in_workspace(p.k, ch);
    of_block_in_workspace(p.v, ch);
    blocks(p, {});
    if (cfg.any_head_dim()) {
        p.k.bound_storage(st.c, max_head_dim / cfg.packed_chunk());
        if (cfg.bf16_tiles) p.v.bound_storage(st.d, max_head_dim);
        if (!cfg.bf16_tiles) p.v.bound_storage(st.e, max_head_dim / 2);
        one_block(p.v_rows.rows.hoist_storage(task_loop)).bound_extent(st.kb, 1);
    }
    if (!ch.ranged) return;
    of_block(p.nonfinite, ch);
    of_block(p.exponents, ch);
}

void PackedBlocksSchedule::blocks(PackedBlocks &p, const std::vector<VarOrRVar> &outer) {
    const auto within = [&](Stage stage, std::vector<VarOrRVar> loops) {
        loops.insert(loops.end(), outer.begin(), outer.end());
        return stage.reorder(loops);
    };
    if (cfg.packs_k()) {
        p.k.bound(st.e, 0, cfg.packed_chunk()).bound(st.k, 0, cfg.kv_block).bound(st.c, 0, p.chunks);
        within(p.k, {st.e, st.c, st.k}).vectorize(st.e);
        if (!cfg.any_head_dim()) p.k.unroll(st.c);
    }
    if (p.over_d.defined()) {
        within(p.k.update().allow_race_conditions(), {p.over_d.x, st.k})  // each element of a row is its own
            .vectorize(p.over_d.x, cfg.any_head_dim() ? 8 : cfg.lanes, TailStrategy::GuardWithIf);
    }
    const Var over_keys = cfg.bf16_tiles ? st.c : st.p;
    if (cfg.bf16_tiles) {
        p.v.bound(st.p, 0, cfg.lanes)
            .bound(st.d, 0, p.values)
            .bound(st.c, 0, cfg.kv_block / (2 * cfg.lanes))
            .split(st.d, db, dv, cfg.packs_words() ? 2 * cfg.lanes : cfg.lanes);
        within(p.v, {st.p, dv, db, st.c}).vectorize(st.p).unroll(dv);
        for (TransposedTiles &tiles : p.v_tiles) schedule_square(tiles, p.v, db, cfg.lanes);
    } else {
        p.v.bound(st.e, 0, p.values / 2)
            .bound(st.c, 0, 2)
            .bound(st.p, 0, cfg.kv_block / 2)
            .split(st.e, db, dv, cfg.packed_lanes());
        within(p.v, {dv, st.c, db, st.p}).vectorize(dv).unroll(st.c);
        if (!cfg.any_head_dim()) p.v.unroll(db);
    }
    if (cfg.any_head_dim()) {
        padded_bits(p.v_rows.rows.compute_at(p.v, over_keys).store_in(MemoryType::Heap), p.v_rows);
    }
    Stage full =
        p.exponents.store_in(MemoryType::Register).bound_extent(st.u, cfg.packed_lanes()).vectorize(st.u).update();
    std::vector<VarOrRVar> in_order{st.u, p.over_v.x, p.over_v.y};
    if (p.over_v.dimensions() > 2) in_order.emplace_back(p.over_v.z);
    full.reorder(in_order).vectorize(st.u);
}

}  // namespace heed
