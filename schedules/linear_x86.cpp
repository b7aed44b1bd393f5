// Dense layers on x86: rows x columns accumulators in registers over all steps of a call.
//
//   for each two panels of columns of W (32 columns x 512 steps each: 64 KiB)
//     for each tile of rows of x (32 tiles of 6 rows, 384 KiB, in L2)
//       sum = before; sum += x (broadcast from memory) x W (two vectors)    over the steps
//
// The runtime hands a block of steps to a call, and the sums so far (runtime/cpu/linear_blocks.h). Each tile asks for
// its share of the next panel (an only tile for the steps 64 ahead) and of the steps of x that follow, and for its
// lines of out, spread over its iterations. Few rows: see schedule_tiles_at_once. 2048 x 4096 x 4096 on a Xeon (family
// 6 model 207, AVX-512, 2 cores): 87 % of the FMA peak, 74 % without blocks and prefetches; in bf16 97 % of the peak of
// VDPBF16PS.
//
// 32 registers: 6 rows x 4 vectors + 4 of W + 1 broadcast; 16 registers: 6 x 2 + 2 + 1. Per step of k a full tile loads
// 10 (8) vectors for 24 (12) FMAs: bound by arithmetic. Tiles of 12 x 2 vectors load 14, so that two steps are 79
// instructions instead of 72. That matters beside a busy hyperthread, where a core begins two instructions of a thread
// in a cycle. Measured there (Xeon, family 6 model 85), time of 6 x 4 of that of 12 x 2: 2048 x 1024 x 3072 0.95, 128 x
// 4096 x 4096 0.95. Tiles of 12 x 2 serve dot products of bf16, which step by two, and up to 12 rows; smaller tiles
// serve fewer, which wait for the memory of W. With AMX: see schedule_matrix_tiles.
#include <algorithm>
#include <functional>

#include "generators/common/ceil_div.h"
#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/bf16_product.h"
#include "generators/lowering/bf16_tiles.h"
#include "generators/lowering/hold_sums.h"
#include "generators/lowering/prefetch_line.h"
#include "generators/lowering/spread_prefetches.h"
#include "generators/lowering/weave_results.h"
#include "generators/lowering/words.h"
#include "generators/ops/linear.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

namespace {

// Rows of two vectors of columns that need no spill: 12 with 32 vector registers, 6 with 16.
int most_rows(const Machine &machine) { return machine.vector_registers * 3 / 8; }

// Two vectors of columns. One row has 4 panels: 8 sums hide the latency of 4 cycles of two multiply-adds a cycle, and 4
// streams of W feed the prefetchers.
LinearTile linear_tile(const Machine &machine, int rows) {
    const int columns = 2 * machine.lanes;
    return {rows, columns, linear_panels(rows, columns), machine.has_bf16_dots, machine.has_bf16_tiles};
}

// Which operands do not stay in a core's own caches.
enum class Operands { all_are_far, weight_is_far };

Expr wide(const Expr &e) { return cast<int64_t>(e); }

// The element with which a line begins, of lines that follow each other from `first` on.
std::function<Expr(const Expr &)> at_line(const Expr &first, int bytes) {
    return [first, bytes](const Expr &line) { return first + wide(line) * (line_bytes / bytes); };
}

// What the only tile of x asks for in two steps: those of W that are 64 steps ahead, 4 lines of floats. The lines of a
// block of steps at once are more than a core has buffers for lines that are on their way: its loads would wait for
// them. 4096 x 4096, 2 threads of a Xeon (family 6 model 85): 12 rows take 0.8 of the time, 4 rows 0.94; a panel ahead,
// which does not stay in an L2 cache, 1.2.
std::vector<SpreadPrefetches::Stream> steps_ahead(const LinearKernel &kernel, const Expr &panels, const Expr &block) {
    constexpr int ahead = 64;
    const int columns = kernel.tile.columns, bytes = kernel.weight.type().bytes();
    std::vector<SpreadPrefetches::Stream> streams;
    for (int n = 0; n < kernel.tile.panels; n++) {
        const Expr panel = panels * kernel.tile.panels + n;
        const Expr first =
            wide(panel) * wide(kernel.weight.dim(2).stride()) + wide(block * linear_step_block + ahead) * columns;
        streams.push_back({kernel.weight.name(), bytes, at_line(first, bytes),
                           std::max(2 * columns * bytes / line_bytes, 1), Expr()});
    }
    return streams;
}

// What each of several tiles of x, that at (t, panel), asks for in its iterations over blocks of steps: a share of the
// steps of the panels that are next; of the steps of x that follow, where they are another call's, a share for each
// panel; its lines of out. panel: of `panels`, each of as many columns as a tile takes at once.
std::vector<SpreadPrefetches::Stream> next_operands(const LinearKernel &kernel, const Expr &t, const Expr &panel,
                                                    Operands operands) {
    const LinearTile &tile = kernel.tile;
    const ImageParam &x = kernel.x, &weight = kernel.weight;
    const int columns = tile.columns * tile.panels;
    const Expr tiles = max(x.dim(3).extent(), 1), panels = max(ceil_div(weight.dim(2).extent(), tile.panels), 1),
               blocks = max(x.dim(2).extent(), 1);

    const int of_weight = weight.type().bytes(),
              block_lines = linear_step_block * tile.columns * of_weight / line_bytes;
    const Expr steps = wide(weight.dim(1).extent()) * tile.columns, is_last = panel + 1 >= panels;
    const Expr more_steps = wide(weight.dim(2).stride()) > steps;
    const Expr share = (block_lines + tiles - 1) / tiles, before = t * share * blocks;
    const auto next_panel = [=](int n) {
        const Expr of_n = wide(n) * wide(weight.dim(2).stride());
        return of_n + select(is_last, steps, wide((panel + 1) * tile.panels) * wide(weight.dim(2).stride()));
    };
    const Expr of_panel = select((is_last && !more_steps) || tiles == 1, 0, block_lines * blocks - before);

    const Expr x_steps = wide(blocks) * wide(x.dim(2).stride()), x_share = (tile.rows + panels - 1) / panels;
    const Expr x_before = panel * x_share * blocks;
    const Expr next_steps = wide(t) * wide(x.dim(3).stride()) + x_steps;
    const Expr of_rows = select(wide(x.dim(3).stride()) > x_steps, tile.rows * blocks - x_before, 0);

    const OutputImageParam out = kernel.out.output_buffer();
    const int of_out = kernel.out.type().bytes(), row_lines = std::max(columns * of_out / line_bytes, 1);
    const auto out_line = [=](const Expr &line) {
        return wide(t * tile.rows + line / row_lines) * wide(out.dim(1).stride()) +
               wide(panel * columns + line % row_lines * (line_bytes / of_out));
    };
    const int out_lines = tile.rows * row_lines;
    std::vector<SpreadPrefetches::Stream> streams;
    for (int n = 0; n < tile.panels; n++) {
        const Expr first = next_panel(n) + wide(before) * (line_bytes / of_weight);
        streams.push_back({weight.name(), of_weight, at_line(first, of_weight), share, of_panel});
    }
    if (operands == Operands::weight_is_far) return streams;
    streams.push_back({x.name(), 4, at_line(next_steps + wide(x_before) * (line_bytes / 4), 4), x_share, of_rows});
    streams.push_back(
        {kernel.out.name(), of_out, out_line, (out_lines + blocks - 1) / blocks, out_lines, Wanted::to_write});
    return streams;
}

// Two vectors of each row are in registers.
Stage in_registers(const LinearKernel &kernel, Stage stage, const Machine &machine) {
    return stage.vectorize(kernel.lane, machine.lanes).unroll(kernel.lane).unroll(kernel.r).unroll(kernel.panel);
}

// The loops around the tiles, by name.
struct LinearLoopNames {
    std::string t, panel, step_block, tile_of_sums;

    LinearLoopNames(const LinearKernel &kernel, const Var &panels)
        : t(kernel.out.name() + ".s0.row." + kernel.t.name()),
          panel(kernel.out.name() + ".s0.c." + kernel.panel.name() + "." + panels.name()),
          step_block(kernel.sum.name() + ".s1." + kernel.over_k.y.name()),
          tile_of_sums(kernel.sum.name() + ".s1." + kernel.t.name() + ".rebased") {}
};

Expr index(const std::string &loop) { return Internal::Variable::make(Int(32), loop); }

// W is in the L1 cache after the first tile's block of steps; between blocks the sums are in memory, 16 loads and
// stores for 128 cycles of products. (4096 x 4096, Xeon, family 6 model 85, 2 threads: 16 rows take 0.77 of the time of
// two full tiles; 4096 x 1024 0.66.)
Passes schedule_tiles_at_once(LinearKernel &kernel, const Var &panels, const RVar &steps) {
    Var tiles("tiles");
    kernel.out.split(kernel.t, tiles, kernel.t, linear_tiles_at_once, TailStrategy::GuardWithIf)
        .partition(tiles, Partition::Never);
    kernel.sum.compute_at(kernel.out, tiles).store_in(MemoryType::Stack).bound_storage(kernel.t, linear_tiles_at_once);
    const LinearLoopNames loops(kernel, panels);
    Passes passes;
    passes.add<HoldSums>(steps.name(), kernel.sum.name());
    passes.add<SpreadPrefetches>(steps.name(), std::vector{loops.panel},
                                 steps_ahead(kernel, index(loops.panel), index(loops.step_block)),
                                 index(loops.tile_of_sums) == 0);
    return passes;
}

// AMX: the sums are two by two of its tiles (LowerBf16Tiles), 64 cycles for 16 pairs. Of the panel of W of a call the
// first kept_panel_bytes, 512 elements, stay in L1; what follows, and x, read once for each panel, are loaded past it
// (x 0.80 of the time of 2048 x 1024 x 3072, W 0.91 of that of 2400 x 1024 x 1024, on a Xeon with AMX, 2 threads).
// Tiles of 16 rows, which serve few rows, read a panel once. The results of a tile, 32 vectors of 32 columns, are made
// beside the products of the next one. Where a call has a block of the steps, W comes from L3 at 6 bytes a cycle, and
// tiles ask for the next panel: 0.90 of the time of 2048 x 4096 x 4096. They ask in the loop over the kept steps, which
// has all steps of a block. Of W that is in L2 they do not ask: that would take 5 % more time.
constexpr int kept_panel_bytes = 32 << 10;

Passes schedule_matrix_tiles(LinearKernel &kernel, const Machine &machine, const Var &panels) {
    const LinearTile &tile = kernel.tile;
    const int lanes = kernel.out.type() == Float(32) ? machine.lanes : tile.columns;
    kernel.out.split(kernel.c, kernel.panel, kernel.lane, tile.columns, TailStrategy::GuardWithIf)
        .split(kernel.row, kernel.t, kernel.r, tile.rows, TailStrategy::GuardWithIf)
        .split(kernel.panel, panels, kernel.panel, tile.panels, TailStrategy::GuardWithIf)
        .reorder(kernel.lane, kernel.r, kernel.panel, kernel.t, panels)
        .vectorize(kernel.lane, lanes)
        .unroll(kernel.lane)
        .unroll(kernel.panel)
        .partition(kernel.t, Partition::Never)
        .partition(panels, Partition::Never)
        .specialize(reinterpret<int32_t>(Expr(kernel.clip)) == infinity_bits);
    kernel.sum.bound_extent(kernel.lane, tile.columns)
        .bound_extent(kernel.r, tile.rows)
        .bound_extent(kernel.panel, tile.panels)
        .compute_at(kernel.out, kernel.t)
        .store_in(MemoryType::Stack)
        .update()
        .unscheduled();
    const LinearLoopNames loops(kernel, panels);
    Passes passes;
    const int kept_steps =
        tile.rows > tile_edge ? kept_panel_bytes / (tile_edge * tile.columns * kernel.weight.type().bytes()) : 0;
    passes.add_exactly<LowerBf16Tiles>(2, "products of linear that become matrix tiles", kept_steps);
    passes.add_exactly<SpreadPrefetches>(
        2, "loops over steps that ask for memory", tile_steps_of(kernel.sum.name()),
        std::vector<std::string>{loops.t, loops.panel},
        next_operands(kernel, index(loops.t), index(loops.panel), Operands::all_are_far),
        wide(kernel.weight.dim(2).stride()) > wide(kernel.weight.dim(1).extent()) * tile.columns);
    std::vector<std::string> steps{tile_steps_of(kernel.sum.name())};
    if (kept_steps > 0) steps.push_back(streamed_steps_of(kernel.sum.name()));
    passes.add_exactly<WeaveResults>(2, "tiles whose results are made beside the next one", loops.t, kernel.sum.name(),
                                     steps);
    return passes;
}

Passes schedule_linear(LinearKernel &kernel, const Machine &machine, Operands operands) {
    const LinearTile &tile = kernel.tile;
    Var panels("panels");
    if (tile.bf16_tiles) return schedule_matrix_tiles(kernel, machine, panels);
    kernel.out.split(kernel.c, kernel.panel, kernel.lane, tile.columns, TailStrategy::GuardWithIf)
        .split(kernel.row, kernel.t, kernel.r, tile.rows, TailStrategy::GuardWithIf)
        .split(kernel.panel, panels, kernel.panel, tile.panels, TailStrategy::GuardWithIf)
        .reorder(kernel.lane, kernel.r, kernel.panel, kernel.t, panels)
        .vectorize(kernel.lane, machine.lanes)
        .unroll(kernel.r)
        .unroll(kernel.panel);
    kernel.out.partition(kernel.t, Partition::Never);
    kernel.sum.bound_extent(kernel.lane, tile.columns)
        .bound_extent(kernel.r, tile.rows)
        .bound_extent(kernel.panel, tile.panels);
    // Two steps at once have 79 instructions, one step 41 (12 x 2 vectors). Loops like these reach 140 and 132 GFLOP/s
    // a core of a Xeon (family 6 model 85) beside a busy hyperthread, four steps at once 135.
    RVar steps("steps"), step("step");
    in_registers(kernel, kernel.sum, machine);
    Stage products = kernel.sum.update().split(kernel.over_k.x, steps, step, 2);
    products.reorder(kernel.lane, kernel.panel, kernel.r, step, steps, kernel.t, kernel.over_k.y).unroll(step);
    in_registers(kernel, products, machine);
    if (!tile.bf16_dots && takes_tiles_at_once(tile.rows, most_rows(machine))) {
        return schedule_tiles_at_once(kernel, panels, steps);
    }
    kernel.sum.compute_at(kernel.out, kernel.t).store_in(MemoryType::Register);
    Passes passes;
    if (tile.bf16_dots) passes.add<LowerBf16Dots>();
    if (tile.rows > 1) {
        const LinearLoopNames loops(kernel, panels);
        const std::vector<std::string> inside = {loops.t, loops.panel};
        const Expr panel = index(loops.panel);
        passes.add<SpreadPrefetches>(steps.name(), inside, steps_ahead(kernel, panel, index(loops.step_block)),
                                     kernel.x.dim(3).extent() <= 1);
        passes.add<SpreadPrefetches>(kernel.over_k.y.name(), inside,
                                     next_operands(kernel, index(loops.t), panel, operands));
    }
    return passes;
}

OpModule compile_linear(const OpSpec &spec, LinearKernel &kernel, Operands operands) {
    const LinearTile &tile = kernel.tile;
    OpModule made = compile(spec, kernel, schedule_linear(kernel, spec.machine(), operands), tile.rows, tile.columns);
    made.streams_tiles = tile.bf16_tiles;
    return made;
}

}  // namespace

// A block of a row is a load and a store. Where the row ends within one, zeros are stored first, then a masked load; a
// last element without a partner is stored alone. Each step is written once after them: no race.
OpModule make_linear_rows(const OpSpec &spec) {
    const LinearTile tile = linear_tile(spec.machine(), spec.rows);
    LinearRowsKernel kernel(spec.type(), tile);
    Func &tiles = kernel.tiles;
    tiles.update(0).reorder(kernel.rest.x, kernel.rest.y, kernel.r, kernel.t).vectorize(kernel.rest.x);
    tiles.update(1)
        .allow_race_conditions()
        .reorder(kernel.filled, kernel.r, kernel.t)
        .vectorize(kernel.filled, linear_step_block, TailStrategy::GuardWithIf);
    Passes passes;
    if (tile.bf16_dots) {
        tiles.update(2).reorder(kernel.half_filled, kernel.r, kernel.t);
        passes.add<LowerWords>();
    }
    return compile(spec, kernel, passes, tile.rows, tile.columns);
}

OpModule make_linear(const OpSpec &spec) {
    const LinearTile tile = linear_tile(spec.machine(), spec.rows);
    LinearKernel kernel(spec.type(), tile);
    return compile_linear(spec, kernel, Operands::all_are_far);
}

// 12 rows x 2 vectors of columns, or 13 rows x 1 (16 registers: 6 x 2, 12 x 1): the panels of a tile of rows one after
// another, so that its rows stay in the L1 cache. Each row has a pointer, and registers hold 13 of them beside that of
// W and the loop's counter; of 14 rows each step would load 5 again. 1000 x 512 x 160 and 1000 x 512 x 16 on an EPYC
// (family 25 model 17, AVX-512, 2 cores): 97 and 92 % of the FMA peak; with AVX2 (family 25 model 1) 92 and 89 %. Pairs
// of bf16 in place of packed ones, EPYC (family 26 model 2): 0.92 and 0.47 of the time.
OpModule make_linear_in_place(const OpSpec &spec) {
    LinearTile tile = linear_tile(spec.machine(), spec.rows);
    const int pitch = tile.columns;
    if (tile.rows > most_rows(spec.machine())) tile.columns /= 2;
    LinearInPlaceKernel kernel(spec.type(), tile, pitch);
    const int lanes = spec.machine().lanes;
    kernel.out.split(kernel.c, kernel.panel, kernel.lane, tile.columns, TailStrategy::GuardWithIf)
        .split(kernel.row, kernel.t, kernel.r, tile.rows, TailStrategy::GuardWithIf)
        .reorder(kernel.lane, kernel.r, kernel.panel, kernel.t)
        .vectorize(kernel.lane, lanes)
        .unroll(kernel.lane)
        .unroll(kernel.r);
    kernel.out.partition(kernel.t, Partition::Never);
    kernel.sum.compute_at(kernel.out, kernel.panel)
        .store_in(MemoryType::Register)
        .bound_extent(kernel.lane, tile.columns)
        .bound_extent(kernel.r, tile.rows)
        .bound_extent(kernel.panel, 1)
        .vectorize(kernel.lane, lanes)
        .unroll(kernel.lane)
        .unroll(kernel.r);
    kernel.sum.update(0)
        .reorder(kernel.lane, kernel.r, kernel.over_blocks.x, kernel.over_blocks.y)
        .unroll(kernel.over_blocks.x);
    kernel.sum.update(1).reorder(kernel.lane, kernel.r, kernel.over_rest);
    Passes passes;
    if (tile.bf16_dots) {
        kernel.sum.update(2).reorder(kernel.lane, kernel.r, kernel.over_half);
        passes.add<LowerBf16Dots>();
    }
    for (int update = 0; update < kernel.sum.num_update_definitions(); update++) {
        kernel.sum.update(update).vectorize(kernel.lane, lanes).unroll(kernel.lane).unroll(kernel.r);
    }
    return compile(spec, kernel, passes, tile.rows, tile.columns);
}

// A panel stays in the L1 cache for all tiles of x. 32 x 32 products of heads of 64 are 128 cycles of the unit's.
OpModule make_attention_products(const OpSpec &spec) {
    const LinearTile tile = linear_tile(spec.machine(), spec.rows);
    AttentionProductsKernel kernel(tile);
    kernel.out.reorder(kernel.lane, kernel.r, kernel.t, kernel.panel);
    kernel.out.update().reorder(kernel.over_k.x, kernel.over_k.y, kernel.lane, kernel.r, kernel.t, kernel.panel);
    Passes passes;
    passes.add_exactly<LowerBf16Tiles>(1, "products of attention_products that become matrix tiles");
    return compile(spec, kernel, passes, tile.rows, tile.columns);
}

// Sums leave in f32, of dot products of bf16 too. Queries and sums stay in L1 and L2: asking for them would take a
// tenth of the time of 64 steps.
OpModule make_attention_scores(const OpSpec &spec) {
    const LinearTile tile = linear_tile(spec.machine(), spec.rows);
    LinearKernel kernel(ElementType::f32, tile);
    return compile_linear(spec, kernel, Operands::weight_is_far);
}

}  // namespace heed
